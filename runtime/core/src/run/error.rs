//! The one error of a run: a headline, a code with a page, and what to do.
//!
//! Every module below has its own error; on the way up it becomes this one, which the command line shows. The
//! headline names the user's thing with both values; `help` says what to type.

use crate::comm::CommError;
use crate::engine::EngineError;
use crate::files::FileError;
use crate::sampling::SamplingError;

/// Why a run, or one command of it, ended.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct RunError {
    /// Slug of the diagnostic.
    pub code: &'static str,
    pub message: String,
    pub help: Option<String>,
}

/// What a step of a run returns.
pub type Outcome<T> = Result<T, RunError>;

impl RunError {
    /// An error without help.
    pub fn new(code: &'static str, message: impl Into<String>) -> RunError {
        RunError { code, message: message.into(), help: None }
    }

    /// Says what to do.
    pub fn help(mut self, text: impl Into<String>) -> RunError {
        self.help = Some(text.into());
        self
    }

    /// Something that a correct compiler and engine never do.
    pub fn internal(message: impl std::fmt::Display) -> RunError {
        RunError::new("internal", format!("{message}; this is a defect of nrlc, not of the recipe"))
    }
}

impl From<CommError> for RunError {
    fn from(e: CommError) -> RunError {
        RunError::new("rank-stopped", e.to_string())
    }
}

impl From<EngineError> for RunError {
    fn from(e: EngineError) -> RunError {
        let code = match &e {
            EngineError::Unsupported(_) => "unsupported-by-engine",
            EngineError::Comm(_) => "rank-stopped",
            EngineError::Failed(_) => "engine-failed",
        };
        RunError::new(code, e.to_string())
    }
}

impl From<FileError> for RunError {
    fn from(e: FileError) -> RunError {
        RunError::new(e.code(), e.to_string())
    }
}

impl From<SamplingError> for RunError {
    fn from(e: SamplingError) -> RunError {
        RunError::new(e.code(), e.to_string())
    }
}

impl From<nrl_ir::host::EvalError> for RunError {
    fn from(e: nrl_ir::host::EvalError) -> RunError {
        RunError::new("expression-failed", e.to_string())
    }
}
