//! Arguments of the command line; the doc comments are the help texts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::calibrate::CalibrateArgs;
use crate::check::CheckArgs;
use crate::diff::DiffArgs;
use crate::doc::DocArgs;
use crate::explain::ExplainArgs;
use crate::export::ExportArgs;
use crate::fmt::FmtArgs;
use crate::import::ImportArgs;
use crate::lsp::LspArgs;
use crate::new::NewArgs;
use crate::plan::PlanArgs;
use crate::repl::ReplArgs;
use crate::test::TestArgs;
use crate::validate::ValidateArgs;

/// Post-trains language models from declarative recipes
#[derive(Parser, Debug)]
#[command(name = "nrlc", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    Run(RunArgs),
    Check(CheckArgs),
    Plan(PlanArgs),
    Repl(ReplArgs),
    Calibrate(CalibrateArgs),
    Validate(ValidateArgs),
    Eval(EvalArgs),
    Generate(GenerateArgs),
    Score(ScoreArgs),
    Test(TestArgs),
    Doc(DocArgs),
    Fmt(FmtArgs),
    Explain(ExplainArgs),
    New(NewArgs),
    Diff(DiffArgs),
    Import(ImportArgs),
    Export(ExportArgs),
    Lsp(LspArgs),
}

/// Which program of a recipe
#[derive(Args, Debug, Clone)]
pub struct RecipeArgs {
    /// Recipe file
    #[arg(value_name = "RECIPE")]
    pub file: String,
    /// Overrides a value, such as `lr=1e-6`, `policy.path=DIR` or `m.tp=2`
    #[arg(long = "set", value_name = "PATH=EXPR")]
    pub sets: Vec<String>,
    /// Number of ranks instead of the recipe's
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Recipe to take, if the file has several
    #[arg(long, value_name = "NAME")]
    pub recipe: Option<String>,
    /// Seed instead of the recipe's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Runs a recipe
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Stops, with a checkpoint, after this many steps
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Directory of the run instead of the next free `runs/N`
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Goes on from a checkpoint: `latest`, a run such as `runs/3`, or one of its checkpoints
    #[arg(long, value_name = "DIR")]
    pub resume: Option<PathBuf>,
    /// Refuses a recipe whose numbers depend on packing, micro-batches or layout
    #[arg(long)]
    pub exact: bool,
    /// Shows nothing but problems and where the files are
    #[arg(short, long)]
    pub quiet: bool,
}

/// Runs the evaluations of a recipe on trained weights
#[derive(Args, Debug)]
pub struct EvalArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// A run, one of its checkpoints, or a model directory; the recipe's own weights if left out
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Continues a prompt with a model
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// Hugging Face model directory
    #[arg(long, value_name = "DIR")]
    pub model: String,
    /// Text to continue
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Renders the prompt as a user's message with the model's chat template
    #[arg(long)]
    pub chat: bool,
    /// Most tokens to generate
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_new: usize,
    /// 0 takes the most likely token, 1 samples from the model's own distribution
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f64,
    /// Samples from the N most likely tokens
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Samples from the most likely tokens that hold this share of probability
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Longest sequence, in tokens, instead of the model's
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Seed of the sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Log-probabilities of given tokens
#[derive(Args, Debug)]
pub struct ScoreArgs {
    /// Hugging Face model directory
    #[arg(long, value_name = "DIR")]
    pub model: String,
    /// JSON lines `{"prompt", "completion"}` or `{"ids"}`; out come lines `{"ids", "logprobs"}`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Longest sequence, in tokens, instead of the model's
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
}
