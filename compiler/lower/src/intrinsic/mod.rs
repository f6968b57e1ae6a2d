//! Functions the compiler itself provides. Everything else is in the standard library.

mod dims;
mod sampling;
pub mod scores;
mod stages;
mod states;
mod tensors;

use std::sync::LazyLock;

use nrl_base::{Diagnostic, Span, nearest};
use nrl_ir::host::Builtin;
use nrl_syntax::ast;

use crate::elab::{El, Elab};
use crate::value::{Env, Val};

/// One function: its name and parameters. A parameter that ends in `?` may be left out.
#[derive(Debug)]
pub struct Intrinsic {
    pub name: &'static str,
    pub params: &'static [&'static str],
    /// May be written `x.f(..)`.
    pub method: bool,
    pub builtin: Option<Builtin>,
}

const fn of(name: &'static str, params: &'static [&'static str]) -> Intrinsic {
    Intrinsic { name, params, method: false, builtin: None }
}

const fn method(name: &'static str, params: &'static [&'static str]) -> Intrinsic {
    Intrinsic { name, params, method: true, builtin: None }
}

/// Those with an implementation of their own; the host builtins follow under their names.
static OWN: &[Intrinsic] = &[
    of("exp", &["x"]),
    of("log", &["x"]),
    of("sqrt", &["x"]),
    of("rsqrt", &["x"]),
    of("tanh", &["x"]),
    of("sigmoid", &["x"]),
    of("abs", &["x"]),
    of("sign", &["x"]),
    of("is_finite", &["x"]),
    of("min", &["a", "b"]),
    of("max", &["a", "b"]),
    of("pow", &["x", "y"]),
    of("where", &["cond", "a", "b"]),
    of("stop", &["x"]),
    of("sum", &["x", "over?"]),
    of("mean", &["x", "over"]),
    of("maximum", &["x", "over"]),
    of("dot", &["a", "b", "over"]),
    of("valid", &["x"]),
    of("ones", &["x"]),
    of("rope", &["x", "inv_freq", "scale?"]),
    of("attention", &["q", "k", "v", "scale?", "window?", "sink?"]),
    of("convolution", &["x", "filters"]),
    of("state_space", &["u", "decay", "b", "c"]),
    of("log_prob", &["logits", "ids"]),
    of("per_token", &["numbers"]),
    of("per_sample", &["numbers"]),
    of("per_group", &["numbers"]),
    of("per_pair", &["numbers"]),
    of("len", &["x"]),
    of("map", &["list", "f"]),
    of("filter", &["list", "f"]),
    of("fold", &["list", "init", "f"]),
    of("optimizer", &["lr", "rule", "state", "clip_norm?", "decay_norms?", "master?"]),
    of("cpu_cluster", &["ranks"]),
    of("gpu_cluster", &["device", "nodes", "gpus"]),
    of("tp_plan", &["rules"]),
    of("json_lines", &["path", "prompt", "answer", "chosen", "rejected", "bad_lines"]),
    of("made_rows", &["rows", "make", "rejected"]),
    of("load_model", &["path", "context", "dtype", "head", "config", "architectures"]),
    of("characters", &["alphabet", "end", "pad"]),
    of("frozen", &["model"]),
    of("lora", &["model", "rank", "on", "alpha?"]),
    of("value", &["model", "samples"]),
    of("top_k", &["x", "k", "over", "groups?", "keep?", "by?"]),
    of("fit", &["x", "from", "to", "at?"]),
    of("repeated", &["x", "to"]),
    of("route", &["x", "k", "from", "to"]),
    of("position", &["in"]),
    of("next", &["x", "else?"]),
    of(
        "generator",
        &[
            "model",
            "on?",
            "temperature?",
            "top_k?",
            "top_p?",
            "stop?",
            "stop_ids?",
            "slots?",
            "memory?",
            "record?",
        ],
    ),
    method(
        "generate",
        &["generator", "prompts", "samples", "max_new?", "temperature?", "min_new?", "deadline?"],
    ),
    method("take", &["data", "count"]),
    method("chat", &["data", "model", "system?"]),
    method("at_most", &["data", "limit", "else?"]),
    method("shuffled", &["data"]),
    of("from", &["data", "path"]),
    of("file", &["path"]),
    of("logprob", &["model", "samples", "temperature?", "routes?", "on?"]),
    of("dist", &["model", "samples", "temperature?"]),
    of("topk", &["dist", "k"]),
    of("kl", &["p", "q"]),
    method("held_out", &["data", "share"]),
    of("validate", &["step", "data"]),
    of("evaluate", &["generator", "data", "reward", "samples?", "limit?", "correct?", "max_new?"]),
];

static ALL: LazyLock<Vec<Intrinsic>> = LazyLock::new(|| {
    let own = OWN.iter().map(|i| Intrinsic {
        name: i.name,
        params: i.params,
        method: i.method,
        builtin: None,
    });
    let host = Builtin::ALL
        .iter()
        .filter(|b| {
            b.name().chars().next().is_some_and(char::is_alphabetic)
                && !OWN.iter().any(|o| o.name == b.name())
        })
        .map(|b| Intrinsic { name: b.name(), params: &[], method: false, builtin: Some(*b) });
    own.chain(host).collect()
});

/// The intrinsic called `name`.
pub fn find(name: &str) -> Option<&'static Intrinsic> {
    // Words of the grammar and host operators that have a symbol are not names.
    ALL.iter().find(|i| i.name == name && !matches!(name, "and" | "or" | "not" | "neg"))
}

/// All names, for suggestions.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|i| i.name)
}

/// Names that may follow a dot.
pub fn methods() -> impl Iterator<Item = &'static str> {
    ALL.iter().filter(|i| i.method).map(|i| i.name)
}

/// One argument as given: its value, unless it is read as written (`over:`).
pub struct Given<'a> {
    pub val: Val<'a>,
    pub span: Span,
    pub expr: Option<&'a ast::Expr>,
}

/// The arguments of a call by parameter.
pub struct Args<'a> {
    pub which: &'static Intrinsic,
    pub given: Vec<Option<Given<'a>>>,
    pub span: Span,
}

impl<'a> Args<'a> {
    /// Takes the argument for `name` out, if it was given.
    pub fn take(&mut self, name: &str) -> Option<Given<'a>> {
        let i = self.which.params.iter().position(|p| p.trim_end_matches('?') == name)?;
        self.given[i].take()
    }

    /// Takes a required argument out.
    pub fn need(&mut self, name: &str) -> (Val<'a>, Span) {
        match self.take(name) {
            Some(g) => (g.val, g.span),
            None => (Val::Poison, self.span),
        }
    }
}

impl<'a> Elab<'a, '_> {
    /// Calls an intrinsic with written arguments.
    pub fn intrinsic_call(
        &mut self,
        env: &Env<'a>,
        which: &'static Intrinsic,
        first: Option<(Val<'a>, Span)>,
        args: &'a [ast::Arg],
        span: Span,
    ) -> El<Val<'a>> {
        if let Some(b) = which.builtin {
            let mut vals: Vec<(Val<'a>, Span)> = first.into_iter().collect();
            for a in args {
                vals.push((self.expr(env, &a.value)?, a.value.span));
            }
            return self.host_call(b, vals, span);
        }
        let mut given: Vec<Option<Given<'a>>> = which.params.iter().map(|_| None).collect();
        let mut next = 0;
        if let Some((val, span)) = first {
            given[0] = Some(Given { val, span, expr: None });
            next = 1;
        }
        for a in args {
            let i = match &a.name {
                None => {
                    next += 1;
                    next - 1
                }
                Some(n) => {
                    match which.params.iter().position(|p| p.trim_end_matches('?') == n.text) {
                        Some(i) => i,
                        None => {
                            let known: Vec<&str> =
                                which.params.iter().map(|p| p.trim_end_matches('?')).collect();
                            let help = nearest(&n.text, known.iter().copied()).map_or_else(
                                || format!("it takes {}", known.join(", ")),
                                |k| format!("did you mean `{k}`?"),
                            );
                            return self.fail(
                                Diagnostic::error(
                                    "unknown-name",
                                    format!("`{}` has no parameter `{}`", which.name, n.text),
                                )
                                .label(n.span, "not a parameter")
                                .help(help),
                            );
                        }
                    }
                }
            };
            if i >= given.len()
                || (given[i].is_some()
                    && !crate::overrides::is_added(a.name.as_ref(), a.value.span))
            {
                return self.error(
                    "wrong-arguments",
                    a.span,
                    format!(
                        "`{}` takes {}",
                        which.name,
                        crate::elab::arguments(which.params.len())
                    ),
                    "one too many",
                );
            }
            // Names of dims and of policies are read as written.
            let raw = match which.params[i] {
                "over" | "over?" | "on" | "memory?" | "record?" | "step" => true,
                "else?" => which.name != "next",
                _ => false,
            };
            let val = if raw { Val::Poison } else { self.expr(env, &a.value)? };
            given[i] = Some(Given { val, span: a.value.span, expr: Some(&a.value) });
        }
        self.run(env, Args { which, given, span })
    }

    /// Calls an intrinsic by name with positional values.
    pub fn intrinsic_vals(
        &mut self,
        name: &str,
        vals: Vec<(Val<'a>, Span)>,
        span: Span,
    ) -> El<Val<'a>> {
        let Some(which) = find(name) else { return Err(crate::elab::Stop) };
        if let Some(b) = which.builtin {
            return self.host_call(b, vals, span);
        }
        if vals.len() > which.params.len() {
            return self.error(
                "wrong-arguments",
                span,
                format!("`{name}` takes {} arguments", which.params.len()),
                "this call",
            );
        }
        let mut given: Vec<Option<Given<'a>>> =
            vals.into_iter().map(|(val, span)| Some(Given { val, span, expr: None })).collect();
        given.resize_with(which.params.len(), || None);
        let env = Env::new(crate::modules::ModuleId(0));
        self.run(&env, Args { which, given, span })
    }

    fn run(&mut self, env: &Env<'a>, args: Args<'a>) -> El<Val<'a>> {
        for (p, g) in args.which.params.iter().zip(&args.given) {
            if g.is_none() && !p.ends_with('?') {
                return self.error(
                    "wrong-arguments",
                    args.span,
                    format!("`{}` needs `{p}`", args.which.name),
                    "not given here",
                );
            }
        }
        match args.which.name {
            "cpu_cluster" | "gpu_cluster" => self.cluster(args),
            "tp_plan" => self.tp_plan(args),
            "lora" => self.lora(args),
            "value" => self.value_call(args),
            "next" => self.next_token(args),
            "top_k" => self.largest_few(env, args),
            "fit" => self.fit(args),
            "repeated" => self.repeated(args),
            "route" => self.route(args),
            "position" => self.position(args),
            "logprob" => self.logprob_call(args),
            "dist" => self.dist(args),
            "topk" => self.topk(args),
            "kl" => self.kl(args),
            "optimizer" | "json_lines" | "made_rows" | "load_model" | "characters" | "frozen"
            | "generator" | "generate" | "take" | "chat" | "at_most" | "shuffled" | "from"
            | "file" | "evaluate" | "held_out" | "validate" => self.stage_call(env, args),
            "per_token" | "per_sample" | "per_group" | "per_pair" => self.literal(args),
            _ => self.tensor_call(env, args),
        }
    }
}
