//! A recipe of the language as a configuration of NeMo RL.
//!
//! In: a file as parsed. Out: a small YAML file over a shipped recipe, the command that starts it,
//! and the lines that NeMo RL has no form for. Lines win over the `settings` block, the block over
//! the shipped recipe.

mod child;
mod launch;
mod loss;
pub(crate) mod source;
mod yaml;

pub use source::Lost;

use nrl_base::{Diagnostic, SourceMap};
use nrl_rules::Settings;
use nrl_rules::settings::{Node, Origin, SetBy, Value};
use nrl_syntax::ast::{self, Expr, ExprKind, ItemKind};

use crate::layers::{Layers, Line};
use crate::loader::Loader;
use crate::native::{Algorithm, text};

/// What an export gives.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The name of the recipe.
    pub name: String,
    pub yaml: String,
    pub launch: String,
    pub lost: Vec<Lost>,
}

/// How to write.
pub struct ExportOptions<'o> {
    /// The folder that holds `examples/`, empty or ending in `/`.
    pub root: &'o str,
    /// What the written file calls the shipped recipe, given its path below `root`.
    pub defaults: &'o dyn Fn(&str) -> String,
    /// The path of the written file in the command, given the name of the recipe.
    pub config: &'o dyn Fn(&str) -> String,
    /// The recipe to take, if the file has several.
    pub recipe: Option<&'o str>,
}

/// Writes a recipe for NeMo RL.
pub fn export(
    loader: &mut Loader,
    sources: &mut SourceMap,
    file: &ast::File,
    options: &ExportOptions<'_>,
) -> Result<Exported, Vec<Diagnostic>> {
    let recipe = pick(file, options.recipe).map_err(|found| vec![*found])?;
    let said = source::read(file, recipe);
    let Layered { base, over, root } = layered(loader, sources, recipe, &said, options.root)?;
    let layers = Layers { base: &base, environment: loader.variables() };
    let (child, inherits) = child::child(&layers, &root);
    let name = recipe.name.text.clone();
    let mut yaml = format!("# Written by nrlc from the recipe `{name}`.\n");
    if let (true, Some(over)) = (inherits, &over) {
        yaml.push_str(&format!("defaults: {}\n", (options.defaults)(over)));
    }
    yaml.push_str(&yaml::mapping(&child));
    let mut lost = said.lost;
    let on_megatron = crate::native::trains_with_megatron(&root);
    if let Some(what) = crate::native::lost_lists(&said.facts, on_megatron) {
        lost.push(Lost { span: recipe.name.span, what: what.into() });
    }
    let launch = launch::launch(&root, &(options.config)(&name));
    Ok(Exported { name, yaml, launch, lost })
}

/// The settings that a recipe with a settings block stands for: its lines over the block, the block over the shipped
/// recipe, which is below the first of `roots` that has it. None for a recipe without a block; of several recipes
/// the first counts where `name` is none.
pub fn settings(
    loader: &mut Loader,
    sources: &mut SourceMap,
    file: &ast::File,
    name: Option<&str>,
    roots: &[String],
) -> Result<Option<Settings>, Vec<Diagnostic>> {
    let first = file.items.iter().find_map(|item| match &item.kind {
        ItemKind::Recipe(recipe) => Some(recipe.name.text.as_str()),
        _ => None,
    });
    let recipe = pick(file, name.or(first)).map_err(|found| vec![*found])?;
    let said = source::read(file, recipe);
    let Some(block) = said.block else { return Ok(None) };
    let has = |root: &&String| {
        block.over.as_ref().is_some_and(|over| loader.has(&format!("{root}{}", over.value)))
    };
    let root = roots.iter().find(has).map_or("", String::as_str);
    let layered = layered(loader, sources, recipe, &said, root)?;
    Ok(Some(Settings { root: layered.root }))
}

/// The shipped recipe before interpolation, its name, and what the recipe makes of it.
struct Layered {
    base: Node,
    over: Option<String>,
    root: Node,
}

fn layered(
    loader: &mut Loader,
    sources: &mut SourceMap,
    recipe: &ast::Recipe,
    said: &source::Said<'_>,
    root: &str,
) -> Result<Layered, Vec<Diagnostic>> {
    let over = match said.block {
        Some(block) => block.over.as_ref().map(|over| over.value.clone()),
        None => said.algorithm.map(|a| shipped(a, text(&said.facts, "plan")).to_string()),
    };
    let base = match &over {
        Some(over) => base(loader, sources, over, root, said.block)?,
        None => nothing(recipe),
    };
    let block = said.block.map_or_else(Vec::new, lines);
    let algorithm = algorithm(&base, &block).or(said.algorithm);
    let layers = Layers { base: &base, environment: loader.variables() };
    let Some(meaning) = layers.meaning(&block, &said.facts, algorithm) else {
        return Err(vec![unresolved(&layers, &block, recipe)]);
    };
    Ok(Layered { base, over, root: meaning.root })
}

fn pick<'f>(file: &'f ast::File, name: Option<&str>) -> Result<&'f ast::Recipe, Box<Diagnostic>> {
    let recipes = || {
        file.items.iter().filter_map(|item| match &item.kind {
            ItemKind::Recipe(recipe) => Some(recipe),
            _ => None,
        })
    };
    let found = match name {
        Some(name) => recipes().find(|recipe| recipe.name.text == name),
        None => recipes().next_back(),
    };
    found.ok_or_else(|| {
        let said = match name {
            Some(name) => format!("there is no recipe `{name}`"),
            None => String::from("the file has no recipe"),
        };
        let names: Vec<_> = recipes().map(|r| r.name.text.as_str()).collect();
        let help = (!names.is_empty()).then(|| format!("there are {}", names.join(", ")));
        Box::new(Diagnostic::error("unknown-name", said).label(file.span, "here").help_opt(help))
    })
}

fn nothing(recipe: &ast::Recipe) -> Node {
    let span = recipe.name.span;
    let origin = Origin { by: SetBy::File, key: span, value: span, source: None };
    Node { value: Value::Map(Default::default()), origin }
}

/// The shipped recipe that fits an algorithm.
fn shipped(algorithm: Algorithm, plan: Option<&str>) -> &'static str {
    match (algorithm, plan) {
        (Algorithm::Grpo, Some("megatron")) => "examples/configs/grpo_math_1B_megatron.yaml",
        (Algorithm::Grpo, _) => "examples/configs/grpo_math_1B.yaml",
        (Algorithm::Ppo, Some("megatron")) => "examples/configs/ppo_math_1B_megatron.yaml",
        (Algorithm::Ppo, _) => "examples/configs/ppo_math_1B.yaml",
        (Algorithm::Dpo, _) => "examples/configs/dpo.yaml",
        (Algorithm::Sft, _) => "examples/configs/sft.yaml",
        (Algorithm::Rm, _) => "examples/configs/rm.yaml",
        (Algorithm::Distillation, Some("megatron")) => {
            "examples/configs/distillation_math_megatron.yaml"
        }
        (Algorithm::Distillation, _) => "examples/configs/distillation_math.yaml",
    }
}

fn base(
    loader: &mut Loader,
    sources: &mut SourceMap,
    over: &str,
    root: &str,
    block: Option<&ast::Settings>,
) -> Result<Node, Vec<Diagnostic>> {
    let path = if over.starts_with('/') { over.to_string() } else { format!("{root}{over}") };
    let (settings, found) = loader.load(sources, &path, &[]);
    match (settings, loader.tree(sources, &path)) {
        (Some(_), Some(tree)) => Ok(tree),
        _ => {
            let mut found = found;
            if let Some(text) = block.and_then(|block| block.over.as_ref()) {
                let said = format!("the recipe below, {path}, cannot be read");
                let lead = Diagnostic::error("file-not-read", said).label(text.span, "named here");
                let help =
                    "say where NeMo RL is: `--nemo-rl DIR`, the folder that holds `examples`";
                found.retain(|d| d.is_error() && d.code != "file-not-read");
                found.insert(0, lead.help(help));
            }
            Err(found)
        }
    }
}

/// What runs: the section that the settings have.
fn algorithm(base: &Node, block: &[Line]) -> Option<Algorithm> {
    let mut root = base.clone();
    for line in block {
        crate::layers::set(&mut root, &line.path, line.value.clone());
    }
    Algorithm::of(&root)
}

fn unresolved(layers: &Layers<'_>, block: &[Line], recipe: &ast::Recipe) -> Diagnostic {
    let mut root = layers.base.clone();
    for line in block {
        crate::layers::set(&mut root, &line.path, line.value.clone());
    }
    let (_, found) = crate::interpolate::resolve(&root, layers.environment);
    let why = found.iter().find(|d| d.is_error()).map_or("", |d| d.message.as_str());
    let said = format!("the settings of `{}` cannot be resolved: {why}", recipe.name.text);
    Diagnostic::error("unresolved-interpolation", said).label(recipe.name.span, "in this recipe")
}

/// The lines of a block as data.
fn lines(block: &ast::Settings) -> Vec<Line> {
    let line = |setting: &ast::Setting| Line {
        path: setting.path.iter().map(|name| name.text.clone()).collect(),
        value: setting.value.as_ref().map(plain),
    };
    block.lines.iter().map(line).collect()
}

/// What an expression says as data: values, lists and records of them.
pub(super) fn plain(e: &Expr) -> Value {
    let origin = Origin { by: SetBy::File, key: e.span, value: e.span, source: None };
    let node = |e: &Expr| Node { value: plain(e), origin };
    match &e.kind {
        ExprKind::Bool(flag) => Value::Bool(*flag),
        ExprKind::Int(n) => Value::Int(*n),
        ExprKind::Float(x) => Value::Float(*x),
        ExprKind::Text(text) => Value::Text(text.clone()),
        ExprKind::List(items) => Value::List(items.iter().map(node).collect()),
        ExprKind::Record(fields) => {
            Value::Map(fields.iter().map(|f| (f.name.text.clone(), node(&f.value))).collect())
        }
        _ => Value::Null,
    }
}
