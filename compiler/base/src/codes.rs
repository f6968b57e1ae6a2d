//! Every diagnostic code with its one-line summary.
//!
//! A code is a kebab-case slug, the same everywhere: in messages, in tests and as the name of its
//! page `docs/errors/<slug>.md`. A test keeps this table and the pages equal.

use crate::Severity;

/// Slugs and summaries, sorted by slug.
pub const CODES: &[(&str, &str)] = &[
    ("allow-without-reason", "a finding is accepted and nobody says why"),
    ("ambiguous-path", "a change of a recipe names several lines"),
    ("async-cannot", "an option does not go with training while generating"),
    ("axis-used-twice", "one axis would split two dims of one value"),
    ("backend-cannot", "a training backend cannot do what is asked of it"),
    ("backend-not-chosen", "a model has no training backend, two of them, or one by omission"),
    ("bad-alphabet", "the alphabet of a model cannot be used"),
    ("bad-chat-template", "the chat template of a model is broken"),
    ("bad-checkpoint", "the files with the weights cannot be used"),
    ("bad-data-line", "lines of a data file cannot be used"),
    ("bad-duration", "a time is not written as days:hours:minutes:seconds"),
    ("bad-escape", "a text holds a backslash escape that does not exist"),
    ("bad-generation-config", "generation_config.json cannot be used"),
    ("bad-model-config", "config.json says something that cannot be right or is not supported"),
    ("bad-number", "a number is too large or is not written as numbers are"),
    ("bad-override", "an override on the command line is not of the form `path=value`"),
    ("bad-padding-multiple", "sequences are padded to a multiple that cannot be split"),
    ("bad-prompt", "a prompt is neither text nor messages"),
    ("bad-safetensors", "a file is not a safetensors file"),
    ("bad-sampling", "sampling options that mean nothing"),
    ("bad-tokenizer", "the tokenizer of a model directory cannot be used"),
    (
        "batch-not-divisible",
        "a batch cannot be cut into equal updates, or shared evenly by the ranks",
    ),
    ("broken-checkpoint", "a checkpoint is not whole"),
    ("broken-inheritance", "a file that `defaults` names is missing or inherits from itself"),
    ("buffer-cannot-fill", "a step waits for more than can come"),
    ("chat-template-refuses", "the chat template refuses the messages"),
    ("checkpoint-differs", "a checkpoint does not fit the recipe"),
    ("checkpoint-format", "a checkpoint was written by another version"),
    ("checkpoint-mismatch", "weights are missing, unexpected or of another shape"),
    ("checkpoint-not-kept", "a checkpoint is saved and not kept as one of the best"),
    ("context-over-model", "sequences are longer than the model has positions"),
    ("data-changed", "a run cannot go on because its data has changed"),
    ("data-not-found", "a data file cannot be read"),
    ("deadlines-disagree", "two deadlines or budgets of one run contradict each other"),
    ("different-distributions", "log-probabilities of different distributions are compared"),
    ("dim-kept-whole", "a plan splits a dim that an operation needs whole"),
    ("dim-mismatch", "the dims of a tensor are not those that are needed"),
    ("dim-not-divisible", "a dim cannot be split evenly over an axis"),
    ("disk-full", "the disk is full"),
    ("does-not-fit", "a stage needs more memory than a device has"),
    ("double-bos", "every prompt would begin with two begin tokens"),
    ("duplicate-key", "a key stands twice in one mapping"),
    ("duplicate-name", "a name is given twice"),
    ("empty-data", "a data set has no rows"),
    ("empty-prompt", "a prompt has no tokens"),
    ("engine-cannot", "a generation engine cannot do what is asked of it"),
    ("engine-failed", "an engine could not compute a step"),
    ("engine-over-memory", "a generator asks for more of a device than is free"),
    ("environment-missing", "data name an environment that is not there"),
    ("epoch-is-empty", "one step takes more rows than the data set has"),
    ("epoch-is-short", "the data end before the steps that are asked for"),
    ("expected-loss", "what is minimised, or given back, is not a loss"),
    ("experts-not-divisible", "experts cannot be shared evenly, or grouped"),
    ("export-failed", "a model cannot be written"),
    ("expression-failed", "an expression of the recipe cannot be computed during the run"),
    ("file-failed", "the system failed to read or write a file"),
    ("file-not-read", "a file that a recipe names cannot be read"),
    ("file-too-large", "a file is larger than a recipe can be"),
    ("group-crosses-nodes", "ranks that exchange much sit on several nodes"),
    ("gym-cannot", "NeMo Gym steers itself what a recipe sets"),
    ("heads-not-divisible", "attention heads cannot be split over an axis"),
    ("host-memory", "what waits on the hosts needs more memory than they have"),
    ("idle-override-marker", "`_override_` stands where it does nothing"),
    ("import-cycle", "a file uses itself, directly or through others"),
    ("import-failed", "a recipe of NeMo RL holds a value that the language cannot write"),
    ("internal", "a defect of nrlc itself"),
    ("kv-pool-too-small", "a generator has no room for one sequence"),
    ("layers-not-divisible", "layers do not split evenly over pipeline stages"),
    ("lengths-disagree", "limits on lengths contradict each other"),
    ("logits-not-finite", "the model's numbers have overflowed"),
    ("lora-options", "options of adapters contradict each other"),
    ("loss-depends-on-layout", "a mean over a ragged dim would depend on packing and layout"),
    ("loss-outside-update", "a loss is made where nothing minimises it"),
    ("lost-meaning", "a line has no form in the system that a recipe is exported to"),
    ("memory-options", "options of recomputation, offload or CUDA graphs contradict each other"),
    ("mesh-does-not-fill", "the axes of a mesh do not multiply to the number of ranks"),
    (
        "micro-batches-differ",
        "with tp of 4 and more, training and log-probs take unequal micro-batches",
    ),
    ("misplaced", "a line or a call stands where it has no meaning"),
    ("missing-field", "something that has no default is not given"),
    ("missing-shard", "a file that the index lists is missing"),
    ("model-has-no-experts", "experts of a dense model are to be split"),
    ("model-not-found", "a model directory, or its config.json, cannot be read"),
    ("moe-options", "options of experts contradict each other"),
    ("more-nodes-needed", "a job needs more nodes than its cluster section says"),
    ("needs-another-setting", "a setting needs another one that is not there"),
    ("nesting-too-deep", "brackets are nested deeper than 128"),
    ("no-chat-template", "a chat is asked for and the model has no chat template"),
    ("no-checkpoint", "there is no checkpoint to go on from"),
    ("no-checkpoint-in-time", "a run ends before its first checkpoint"),
    ("no-learning-signal", "a loss does not depend on the model it should train"),
    ("no-match", "no arm of a `match` takes the value"),
    ("no-run-line", "a recipe does not say how many steps it runs"),
    ("no-thread", "the system gives no thread for a rank"),
    ("no-token-allowed", "every token is forbidden at some position"),
    ("node-budget", "nodes or GPUs do not suffice for who asks for them"),
    ("not-a-choice", "a value is none of the choices"),
    ("not-a-mapping", "a YAML recipe is not a mapping of sections"),
    ("not-callable", "something that is not a function is called"),
    ("not-causal", "a model that mixes all tokens is asked to generate"),
    ("not-differentiable", "a loss depends on a weight through something without a gradient"),
    ("not-in-alphabet", "text has a character that the model's alphabet lacks"),
    ("not-supported", "something that the language has but this version cannot run"),
    ("not-utf8", "a file holds bytes that are not UTF-8 text"),
    ("not-writable", "a directory cannot be written"),
    ("nothing-to-run", "a recipe has no step"),
    ("nothing-to-train", "no trained weight reaches the loss"),
    ("null-as-text", "the text \"None\" stands where null is meant"),
    ("one-update-needed", "a step makes several updates where only one is possible"),
    ("optimizer-options", "options of an optimizer or its schedule contradict each other"),
    ("options-exclude-each-other", "two options exclude each other"),
    ("out-of-range", "a number is outside the range where it means something"),
    ("pools-do-not-fit", "pools do not add up to their cluster"),
    ("precision-conflict", "number formats do not go together"),
    ("prompt-fills-context", "a prompt leaves no room for a completion"),
    ("prompt-too-long", "prompts are longer than `at_most` allows"),
    ("rank-stopped", "one rank of the run failed and stopped the others"),
    ("rank-stuck", "a rank has not answered within its deadline"),
    ("recursion", "a function or a name is defined through itself"),
    ("refit-cannot", "weights cannot be sent to generation in this way"),
    ("renamed-setting", "a setting has another name now"),
    ("requirement-fails", "a `require` of the recipe does not hold"),
    ("reward-failed", "a reward failed for every sample of the first step"),
    ("reward-model-cannot", "a scoring reward model is set up as if it were trained"),
    ("reward-not-started", "the command of an extern reward does not run"),
    ("reward-shaping", "rewards are shaped or scaled in a way that cannot work"),
    ("rule-matches-nothing", "a rule of your own plan matches nothing"),
    ("rules-conflict", "two rules of equal rank lay out one dim differently"),
    ("sample-over-context", "a prompt with its answer is longer than the context"),
    ("sequence-over-budget", "a sample is longer than a micro-batch"),
    ("sequence-parallel-needed", "a model needs sequence parallelism beside tensor parallelism"),
    ("session-used-twice", "a session of an environment is used again"),
    ("setting-has-no-effect", "a setting changes nothing"),
    ("stale-baseline", "the baseline accepts a finding that is no longer there"),
    ("stop-tokens-missing", "a list of stop tokens leaves out one on which the model ends"),
    ("syntax", "the text is not what the grammar expects here"),
    ("teachers-unused", "teachers and the estimator that reads them do not match"),
    ("template-rewrites-history", "a chat template changes the earlier turns of a conversation"),
    ("tensor-outside-step", "a tensor is computed where there are no tensors"),
    ("tied-head-differs", "a stored head differs from the embedding it is tied to"),
    ("too-little-data", "one step takes more rows than a file has"),
    ("too-much-work", "checking a recipe would take too long"),
    ("truncated-safetensors", "a file with weights ends too early"),
    ("twins-disagree", "two settings of one thing differ"),
    ("unbalanced-bracket", "a bracket is not closed, or closes nothing"),
    (
        "uncorrected-off-policy",
        "samples of earlier weights are learned from as if they were of these",
    ),
    ("unit-mismatch", "a quantity has another unit than is needed"),
    ("unknown-axis", "a plan uses an axis that the mesh does not have"),
    ("unknown-character", "a character has no meaning outside texts and comments"),
    ("unknown-metric", "checkpoints are kept by something that no evaluation reports"),
    ("unknown-name", "a name is not defined here"),
    ("unknown-path", "an override names a path that the recipe does not have"),
    ("unknown-unit", "a quantity has a unit that does not exist"),
    ("unreachable-arm", "an arm of a `match` comes behind one that takes all it could"),
    ("unresolved-interpolation", "a `${..}` of a YAML recipe cannot be resolved"),
    ("unsupported-architecture", "a checkpoint has an architecture that std.models does not have"),
    ("unsupported-by-engine", "an engine cannot run a plan"),
    ("unsupported-dtype", "weights are stored in a number type that cannot be read"),
    ("unterminated-text", "a text starts with a quote and does not end on its line"),
    ("unused-allow", "a comment accepts a finding that is not there"),
    ("update-below-precision", "updates are too small for the number type of the weights"),
    ("validation-on-nothing", "validation runs on no samples, or on fewer than given"),
    ("validation-without-data", "validation is on and has no data"),
    ("value-missing", "a value marked `???` is set by nothing"),
    ("variable-not-set", "a recipe needs an environment variable that is not set here"),
    ("vocabulary-mismatch", "the tokenizer has more ids than the model has rows"),
    ("worth-knowing", "a choice has a consequence that is easy to miss"),
    ("wrong-arguments", "a call has too many or too few arguments"),
    ("wrong-type", "a value is of another kind than is needed"),
    (
        "yaml-reads-otherwise",
        "YAML reads a plain word or number as something else than it looks like",
    ),
    ("yaml-syntax", "a YAML file is not well formed"),
];

/// Codes that are not errors, sorted by slug.
const MILDER: &[(&str, Severity)] = &[
    ("allow-without-reason", Severity::Warning),
    ("checkpoint-not-kept", Severity::Note),
    ("context-over-model", Severity::Warning),
    ("epoch-is-short", Severity::Note),
    ("group-crosses-nodes", Severity::Warning),
    ("idle-override-marker", Severity::Warning),
    ("more-nodes-needed", Severity::Note),
    ("renamed-setting", Severity::Warning),
    ("setting-has-no-effect", Severity::Warning),
    ("stale-baseline", Severity::Note),
    ("stop-tokens-missing", Severity::Note),
    ("twins-disagree", Severity::Note),
    ("unused-allow", Severity::Warning),
    ("update-below-precision", Severity::Warning),
    ("variable-not-set", Severity::Warning),
    ("worth-knowing", Severity::Note),
    ("yaml-reads-otherwise", Severity::Warning),
];

/// How bad a finding with the code is where nothing else is said.
pub fn severity(code: &str) -> Severity {
    MILDER.iter().find(|(slug, _)| *slug == code).map_or(Severity::Error, |(_, severity)| *severity)
}

/// The summary of a code, if it exists.
pub fn summary(code: &str) -> Option<&'static str> {
    CODES.iter().find(|(slug, _)| *slug == code).map(|(_, summary)| *summary)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests read files")]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::CODES;

    #[test]
    fn every_code_has_a_page_and_every_page_a_code() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let pages: BTreeSet<String> = std::fs::read_dir(&folder)
            .expect("docs/errors exists")
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".md").map(str::to_string))
            .collect();
        let codes: BTreeSet<String> = CODES.iter().map(|(slug, _)| slug.to_string()).collect();
        let without_page: Vec<_> = codes.difference(&pages).collect();
        let without_code: Vec<_> = pages.difference(&codes).collect();
        assert!(without_page.is_empty(), "codes without docs/errors page: {without_page:?}");
        assert!(without_code.is_empty(), "pages without a code in CODES: {without_code:?}");
    }

    /// The slugs that a source file gives to diagnostics: the first text behind `error(`, `new(` and
    /// the like, and the texts of functions called `code`.
    fn slugs(source: &str) -> Vec<String> {
        let is_slug = |s: &str| {
            let letters =
                s.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            letters && s.contains('-') && !s.starts_with('-')
        };
        let quoted = |s: &str| s.strip_prefix('"')?.split('"').next().map(str::to_string);
        let source = source.split("#[cfg(test)]").next().unwrap_or("");
        let mut out = vec![];
        for call in ["error(", "warning(", "Diagnostic::new(", "RunError::new(", "Problem::new("] {
            out.extend(source.split(call).skip(1).filter_map(|rest| quoted(rest.trim_start())));
        }
        for body in source.split("fn code(&self)").skip(1) {
            let body = body.split("\n    }\n").next().unwrap_or("");
            out.extend(body.split('"').skip(1).step_by(2).map(str::to_string));
        }
        out.retain(|s| is_slug(s));
        out
    }

    fn sources(folder: &Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a source folder").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("tests") && !path.ends_with("target") {
                sources(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }

    #[test]
    fn every_code_that_a_source_raises_is_in_the_table() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = vec![];
        for folder in ["compiler", "runtime", "cli"] {
            sources(&root.join(folder), &mut files);
        }
        let (mut raised, mut unknown) = (BTreeSet::new(), vec![]);
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source");
            for slug in slugs(&text) {
                if super::summary(&slug).is_none() {
                    unknown.push(format!("{slug} in {}", file.display()));
                }
                raised.insert(slug);
            }
        }
        assert!(unknown.is_empty(), "codes that have no summary and page: {unknown:#?}");
        assert!(raised.len() > 80, "only {} codes found", raised.len());
    }

    #[test]
    fn codes_are_sorted_and_unique() {
        assert!(CODES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(super::MILDER.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(super::MILDER.iter().all(|(slug, _)| super::summary(slug).is_some()));
    }
}
