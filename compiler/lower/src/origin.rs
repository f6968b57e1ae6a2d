//! Where log-probabilities come from: law 7.
//!
//! In: the call that makes them. Out: an [`Origin`] that goes with the values, and the checks of
//! what compares two of them. A difference of two log-probabilities of one model is the logarithm of
//! a ratio: both must be of the same distribution. Of two models it is a divergence, where only the
//! temperatures and vocabularies must agree.

use std::rc::Rc;

use nrl_base::{Diagnostic, Span};
use nrl_ir::program::{BindingId, Sampling, Tokens};

use crate::elab::{El, Elab, Mode};
use crate::value::{Drawing, Samples};

/// Which weights a value was computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Those of the first line of the step.
    StepStart,
    /// Those that the update is changing.
    Live,
    /// Those after an update of this step.
    Updated,
    /// Those that the sampler had.
    Sampler,
}

impl Version {
    fn words(self) -> &'static str {
        match self {
            Version::StepStart => "at step start",
            Version::Live => "live, inside `minimising`",
            Version::Updated => "after the update",
            Version::Sampler => "the sampler's",
        }
    }
}

/// The tokens among which a distribution chooses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Support {
    pub top_k: Option<usize>,
    pub top_p: Option<f64>,
    pub min_new: usize,
}

impl Support {
    pub fn of(s: &Sampling) -> Support {
        Support { top_k: s.top_k, top_p: s.top_p.filter(|p| *p < 1.0), min_new: s.min_new }
    }

    pub fn is_full(&self) -> bool {
        *self == Support::default()
    }

    fn words(&self) -> String {
        let mut parts = vec![];
        parts.extend(self.top_p.map(|p| format!("top_p {p}")));
        parts.extend(self.top_k.map(|k| format!("top_k {k}")));
        if self.min_new > 0 {
            parts.push(format!("min_new {}", self.min_new));
        }
        if parts.is_empty() {
            return "full vocabulary".into();
        }
        format!("{}, renormalised over the kept tokens", parts.join(", "))
    }
}

/// One distribution of one model over the tokens of one batch.
#[derive(Clone, Debug)]
pub struct Origin {
    pub model: usize,
    pub version: Version,
    pub temperature: f64,
    pub support: Support,
    pub samples: BindingId,
    /// `s.logprob` or `logprob(policy, s)`.
    pub told: String,
    pub span: Span,
    /// Where the temperature and the support were set, if they were.
    pub temperature_at: Option<Span>,
    pub support_at: Option<Span>,
}

impl<'a> Elab<'a, '_> {
    /// The weights that a model's name means here.
    pub fn version(&self, model: usize) -> Version {
        match self.mode() {
            Mode::Loss { model: m } if *m == model => Version::Live,
            _ if self.updated.contains(&model) => Version::Updated,
            _ => Version::StepStart,
        }
    }

    /// Origin of the log-probabilities that a sampler drew at.
    pub fn drawn_origin(&self, s: &Samples, d: &Drawing, span: Span) -> Rc<Origin> {
        let name = self.stages.get(s.binding).map_or("s", |b| b.name.as_str());
        let name = if name.starts_with('%') { "the samples" } else { name };
        Rc::new(Origin {
            model: d.model,
            version: Version::Sampler,
            temperature: d.sampling.temperature,
            support: Support::of(&d.sampling),
            samples: s.binding,
            told: format!("{name}.logprob"),
            span,
            temperature_at: d.temperature_at,
            support_at: d.support_at,
        })
    }

    /// Checks `a - b` of two log-probabilities.
    pub fn compare(&mut self, a: &Origin, b: &Origin, span: Span) -> El<()> {
        if a.samples != b.samples {
            let what = "log-probabilities of the tokens of two different batches";
            let d = Diagnostic::error("dim-mismatch", what).label(self.user_span(a.span), &*a.told);
            return self.fail(d.label(self.user_span(b.span), &*b.told));
        }
        let same_model = a.model == b.model;
        if self.vocabulary(a.model) != self.vocabulary(b.model) {
            return self.vocabularies(a.model, b.model, (a.span, b.span));
        }
        let greedy = |o: &Origin| if o.temperature > 0.0 { o.temperature } else { 1.0 };
        let hot = (greedy(a) - greedy(b)).abs() > 1e-12;
        let kept = same_model && a.support != b.support;
        if !hot && !kept {
            return Ok(());
        }
        let at = self.user_span(span);
        let what = if same_model { "ratio" } else { "divergence" };
        let mut d = Diagnostic::error(
            "different-distributions",
            format!("this {what} compares two different distributions"),
        );
        d = d.label(at, "compared here");
        for o in [a, b] {
            let (text, set) = if hot {
                (format!("temperature {}", greedy(o)), o.temperature_at)
            } else {
                (o.support.words(), o.support_at)
            };
            let weights = o.version.words();
            let place = self.user_span(set.unwrap_or(o.span));
            d = d.label(place, format!("{}: {text} ({weights})", o.told));
        }
        let filtered = if a.support.is_full() { b } else { a };
        d = d.help(if hot {
            "give both the same temperature: `logprob(model, s)` takes that of the samples by itself"
                .to_string()
        } else if filtered.version == Version::Sampler {
            let mut off = vec![];
            off.extend(filtered.support.top_p.map(|_| "`top_p: 1.0`"));
            off.extend(filtered.support.top_k.map(|_| "no `top_k`"));
            off.extend((filtered.support.min_new > 0).then_some("no `min_new`"));
            format!(
                "{}; or `record: [support]` and `logprob(.., on: s.support)`",
                off.join(" and ")
            )
        } else {
            "compute both with `on: s.support`, or both without".to_string()
        });
        self.fail(d)
    }

    /// What tells one vocabulary from another: the tokenizer and the number of ids.
    pub fn vocabulary(&self, model: usize) -> (String, usize) {
        let rows = self.models.get(model).map_or(0, |m| m.valid);
        let tokens = match self.out.program.models.get(model).map(|m| &m.tokens) {
            Some(Tokens::Characters { alphabet, .. }) => alphabet.clone(),
            _ => String::new(),
        };
        (tokens, rows)
    }

    pub fn vocabularies<T>(&mut self, a: usize, b: usize, at: (Span, Span)) -> El<T> {
        let (x, y) = (self.vocabulary(a).1, self.vocabulary(b).1);
        let name = |me: &Self, m: usize| me.out.program.models[m].name.clone();
        let (n, m) = (name(self, a), name(self, b));
        let d = Diagnostic::error(
            "vocabulary-mismatch",
            format!("`{n}` and `{m}` do not choose among the same tokens"),
        )
        .label(self.user_span(at.0), format!("`{n}`: {x} ids"))
        .label(self.user_span(at.1), format!("`{m}`: {y} ids"))
        .help("take models with one tokenizer, and the same number of ids in use");
        self.fail(d)
    }
}
