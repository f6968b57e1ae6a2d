//! A recipe to be planned, whatever it is written in.
//!
//! In: a path of a `.nrl` file, or of a YAML file of NeMo RL, which is imported in memory. Out: a text of the
//! language over all other files, options and assumptions, to be compiled as often as one likes with other
//! settings or another text. What settings of NeMo RL do beyond the language is read once, from the YAML or from the block
//! that an import leaves in a recipe, so that both are planned alike.

use std::collections::BTreeMap;

use nrl_base::{Diagnostic, Files, SourceId, SourceMap};
use nrl_driver::{Assume, Compiled, Options};
use nrl_ir::program::Stage;
use nrl_nemo::Loader;
use nrl_rules::Settings;
use nrl_rules::recipe::Version;
use nrl_sim::forecast::{Assumed, Forecast, Source};
use nrl_sim::rates::Compute;

use crate::nemo;

/// Files with one text put over them.
pub struct Over<'f> {
    pub files: &'f dyn Files,
    pub path: String,
    pub text: String,
}

impl Files for Over<'_> {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        if path == self.path { Ok(self.text.clone().into_bytes()) } else { self.files.read(path) }
    }
}

/// What to open, and what to take for granted.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub path: String,
    /// Settings of NeMo RL for a YAML file.
    pub overrides: Vec<String>,
    /// Variables that a YAML file may name.
    pub environment: BTreeMap<String, String>,
    /// Where NeMo RL is, for recipes whose settings stand on one that it ships: empty, or ending in `/`.
    pub nemo_root: String,
    /// The device that a YAML file stands for: it names none.
    pub gpu: Option<String>,
    /// The version of NeMo RL that its settings are for.
    pub version: Version,
    pub options: Options,
    pub assume: Assume,
}

/// A recipe that can be compiled again and again.
#[derive(Clone)]
pub struct Input<'f> {
    files: &'f dyn Files,
    /// The file as it was named.
    pub file: String,
    /// The path that the text is compiled under.
    pub path: String,
    pub text: String,
    pub options: Options,
    pub assume: Assume,
    /// What was guessed before anything was compiled.
    pub guesses: Vec<Assumed>,
}

/// A compiled recipe with its forecast.
pub struct Planned {
    pub compiled: Compiled,
    pub forecast: Option<Forecast>,
    pub sources: SourceMap,
}

/// Findings with the sources that they point into.
pub struct Findings {
    pub found: Vec<Diagnostic>,
    pub sources: SourceMap,
}

/// Is this a file of NeMo RL?
pub fn is_yaml(path: &str) -> bool {
    path.ends_with(".yaml") || path.ends_with(".yml")
}

impl<'f> Input<'f> {
    /// Opens a recipe. Findings of an import come along; without an input among the results one of them is an error.
    pub fn open(files: &'f dyn Files, request: &Request) -> (Option<Input<'f>>, Findings) {
        let mut sources = SourceMap::new();
        let mut input = Input {
            files,
            file: request.path.clone(),
            path: request.path.clone(),
            text: String::new(),
            options: request.options.clone(),
            assume: request.assume.clone(),
            guesses: vec![],
        };
        let (opened, found) = match is_yaml(&request.path) {
            true => input.import(request, &mut sources),
            false => input.read(request, &mut sources),
        };
        (opened.then_some(input), Findings { found, sources })
    }

    fn read(&mut self, request: &Request, sources: &mut SourceMap) -> (bool, Vec<Diagnostic>) {
        if request.gpu.is_some() {
            let said = format!("{} names its devices itself; `--gpu` is for YAML", self.path);
            let help = "write another cluster, such as `clusters.h200(nodes: 1)`";
            return (false, vec![Diagnostic::error("bad-override", said).help(help)]);
        }
        match self.files.read(&self.path) {
            Ok(bytes) => {
                let id = sources.add(&self.path, String::from_utf8_lossy(&bytes));
                match nrl_syntax::utf8(id, &bytes) {
                    Ok(text) => {
                        self.text = text.to_string();
                        if text.contains("settings nemo_rl") {
                            self.block(request, sources, id);
                        }
                        (true, vec![])
                    }
                    Err(d) => (false, vec![*d]),
                }
            }
            Err(why) => {
                let said = format!("cannot read {}: {why}", self.path);
                (false, vec![Diagnostic::error("file-not-read", said)])
            }
        }
    }

    /// Counts the block of settings that an import leaves in a recipe.
    fn block(&mut self, request: &Request, sources: &mut SourceMap, id: SourceId) {
        let (file, problems) = nrl_syntax::parse(id, &self.text);
        // Compiling tells of them.
        if problems.iter().any(Diagnostic::is_error) {
            return;
        }
        let mut loader = Loader::new(self.files).environment(request.environment.clone());
        let mut roots = vec![request.nemo_root.clone()];
        roots
            .extend(self.path.match_indices('/').rev().map(|(at, _)| self.path[..=at].to_string()));
        roots.push(String::new());
        let name = self.options.recipe.as_deref();
        let said = match nrl_nemo::settings(&mut loader, sources, &file, name, &roots) {
            Ok(Some(settings)) => return self.habits(request, &settings),
            Ok(None) => {
                "the block `settings nemo_rl` is of another recipe, and is not counted".into()
            }
            Err(found) => format!(
                "the block `settings nemo_rl` is NOT COUNTED: {}; `--nemo-rl DIR` says where NeMo RL is",
                found.first().map_or("", |d| d.message.as_str())
            ),
        };
        for assume in [&mut self.options.assume, &mut self.assume] {
            assume.framework.notes.push(said.clone());
        }
    }

    /// What settings of NeMo RL do beyond the language.
    fn habits(&mut self, request: &Request, settings: &Settings) {
        // Before 0.4 the optimizer's state left the devices on the way of new weights alone (its PR 1159).
        let framework = nemo::framework(settings, &self.text, request.version == Version::V0_3);
        let family = nemo::stack(settings);
        let fp8 = nemo::trains_in_fp8(settings);
        for assume in [&mut self.options.assume, &mut self.assume] {
            assume.framework = framework.clone();
            assume.stack.get_or_insert_with(|| match request.version {
                Version::V0_3 => format!("{family} 0.3"),
                Version::Newest => family.to_string(),
            });
            if fp8 {
                assume.compute = Compute::Fp8;
            }
        }
    }

    /// Overrides of the YAML: those given as such, and what `--set` says of a setting that the file has.
    fn overrides(
        &mut self,
        request: &Request,
        loader: &mut Loader<'_>,
        sources: &mut SourceMap,
    ) -> Vec<String> {
        let mut overrides = request.overrides.clone();
        if self.options.sets.is_empty() {
            return overrides;
        }
        let (Some(settings), _) = loader.load(sources, &request.path, &overrides) else {
            return overrides;
        };
        self.options.sets.retain(|set| {
            let theirs = set.split_once('=').is_some_and(|(path, _)| {
                let path = path.trim();
                path.contains('.') && settings.get(path).is_some()
            });
            overrides.extend(theirs.then(|| set.clone()));
            !theirs
        });
        overrides
    }

    fn import(&mut self, request: &Request, sources: &mut SourceMap) -> (bool, Vec<Diagnostic>) {
        let mut loader = Loader::new(self.files).environment(request.environment.clone());
        let overrides = self.overrides(request, &mut loader, sources);
        let (text, mut found) = nrl_nemo::import(&mut loader, sources, &request.path, &overrides);
        let Some(text) = text else { return (false, found) };
        self.text = text;
        if let (Some(settings), _) = loader.load(sources, &request.path, &overrides) {
            let refused = nemo::refused(&settings, &self.file, self.files);
            let refused = refused.or_else(|| nemo::unsaid(&settings, &self.text, &self.file));
            if let Some(why) = refused {
                found.push(why);
                return (false, found);
            }
            self.habits(request, &settings);
        }
        let known = devices();
        let written = known.iter().find(|d| self.text.contains(&format!("clusters.{d}(")));
        let gpu = request.gpu.as_deref().map(str::to_lowercase);
        if let Some(gpu) = &gpu
            && !known.contains(gpu)
        {
            let help = nrl_base::did_you_mean(gpu, known.iter().map(String::as_str));
            let help = help.unwrap_or_else(|| format!("known are {}", known.join(", ")));
            let said = format!("there is no cluster of `{gpu}`");
            found.push(Diagnostic::error("unknown-name", said).help(help));
            return (false, found);
        }
        if let Some(written) = written {
            let device = gpu.clone().unwrap_or_else(|| written.clone());
            let (from, to) = (format!("clusters.{written}("), format!("clusters.{device}("));
            self.text = self.text.replace(&from, &to);
            self.guesses.extend(gpu.is_none().then(|| Assumed {
                what: "GPU".into(),
                value: device.to_uppercase(),
                source: Source::Assumed,
                help: "NeMo RL names none: `--gpu h200`".into(),
            }));
        }
        // What is written in YAML is compiled as a file of the language beside it.
        self.path = format!("{}.nrl", self.path);
        found.retain(Diagnostic::is_error);
        (true, found)
    }

    /// All files with this text over them.
    pub fn files(&self) -> Over<'f> {
        Over { files: self.files, path: self.path.clone(), text: self.text.clone() }
    }

    /// The same recipe with another text.
    pub fn with_text(&self, text: String) -> Input<'f> {
        Input { text, ..self.clone() }
    }

    /// The same recipe with more settings.
    pub fn with_sets(&self, sets: &[String]) -> Input<'f> {
        let mut input = self.clone();
        input.options.sets.extend(sets.iter().cloned());
        input
    }

    /// Compiles and forecasts; nothing where an error was found.
    pub fn plan(&self) -> (Option<Planned>, Findings) {
        let mut sources = SourceMap::new();
        let (compiled, mut found) =
            nrl_driver::compile(&self.files(), &mut sources, &self.path, &self.options);
        // A plan is for machines that are not here.
        found.retain(|d| d.message != nrl_lower::CANNOT_RUN);
        let idle = |c: &Compiled| {
            let stages = c.program.phases.iter().flat_map(|p| &p.step);
            !stages
                .clone()
                .any(|b| matches!(b.stage, Stage::Update { .. } | Stage::Generate { .. }))
        };
        if is_yaml(&self.file) && compiled.as_ref().is_some_and(idle) {
            let said = format!("{} has no step that a plan could be made of", self.file);
            let help = "a plan needs a model that samples or learns: GRPO, PPO, DPO, SFT, distillation, a reward model";
            found.push(Diagnostic::error("not-supported", said).help(help));
            return (None, Findings { found, sources });
        }
        if !is_yaml(&self.file) {
            found.extend(compiled.as_ref().and_then(nrl_driver::unsaid));
        }
        let planned = compiled.map(|compiled| {
            let forecast = self.forecast(&compiled);
            Planned { compiled, forecast, sources: sources.clone() }
        });
        (planned, Findings { found, sources })
    }

    /// The forecast of what was compiled, with what was guessed before.
    pub fn forecast(&self, compiled: &Compiled) -> Option<Forecast> {
        let mut forecast = nrl_driver::forecast(compiled, &self.assume)?;
        forecast.assumed.splice(0..0, self.guesses.iter().cloned());
        Some(forecast)
    }

    /// The paths that can be set, with where their values stand.
    pub fn paths(&self, sources: &mut SourceMap) -> Vec<nrl_lower::paths::Named> {
        let options = nrl_lower::Options {
            sets: self.options.sets.clone(),
            ranks: self.options.ranks,
            recipe: self.options.recipe.clone(),
        };
        nrl_lower::recipe_paths(&self.files(), sources, &self.path, &options)
    }
}

/// The devices that the standard library has clusters of.
pub fn devices() -> Vec<String> {
    let text = nrl_driver::STD.iter().find(|(name, _)| *name == "std.clusters");
    let lines = text.map_or("", |(_, text)| text).lines();
    let names = lines.filter_map(|l| l.strip_prefix("fn ")?.split_once("(nodes:"));
    names.map(|(name, _)| name.to_string()).collect()
}
