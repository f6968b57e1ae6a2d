//! Running the binary in a folder of its own.

pub mod model;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A temporary folder with files, and the binary run inside it.
pub struct Bench {
    pub dir: tempfile::TempDir,
}

/// What one run printed.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A checked-in checkpoint.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(name)
}

impl Bench {
    pub fn new() -> Bench {
        Bench { dir: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file, folders included.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> &Bench {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, text).expect("a file written");
        self
    }

    /// Copies a checked-in checkpoint to `to`.
    pub fn model(&self, name: &str, to: &str) -> &Bench {
        std::fs::create_dir_all(self.path(to)).expect("a folder");
        for entry in std::fs::read_dir(fixture(name)).expect("the fixture") {
            let entry = entry.expect("an entry");
            std::fs::copy(entry.path(), self.path(to).join(entry.file_name())).expect("a copy");
        }
        self
    }

    pub fn command(&self) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_nrlc"));
        c.current_dir(self.dir.path()).env("NO_COLOR", "1");
        // What was measured of the machine that tests run on is none of their business.
        c.env("XDG_CONFIG_HOME", self.dir.path().join("config"));
        c
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command().args(args).output().expect("the binary runs"))
    }
}

impl Ran {
    pub fn of(o: Output) -> Ran {
        let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
        Ran { code: o.status.code(), out: text(o.stdout), err: text(o.stderr) }
    }

    /// Failed with exit code 1 and one error of this code that mentions all of `words`.
    pub fn fails(&self, code: &str, words: &[&str]) {
        assert_eq!(self.code, Some(1), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        let errors = self.err.matches("error[").count();
        assert_eq!(errors, 1, "one error, not {errors}:\n{}", self.err);
        assert!(self.err.contains(&format!("error[{code}]")), "error[{code}] in:\n{}", self.err);
        let flat = self.err.split_whitespace().collect::<Vec<_>>().join(" ");
        for w in words {
            assert!(flat.contains(w), "`{w}` in:\n{}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }

    pub fn succeeds(&self) {
        assert_eq!(self.code, Some(0), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
    }
}

/// GRPO on a checkpoint in `model`, prompts in `data.jsonl`; `change` edits the text.
pub fn recipe(change: &[(&str, &str)]) -> String {
    let mut text = RECIPE.to_string();
    for (from, to) in change {
        assert!(text.contains(from), "the recipe has `{from}`");
        text = text.replace(from, to);
    }
    text
}

const RECIPE: &str = r#"use std.{clusters, data, grpo, models, optim, plans, rewards}

recipe tiny(lr = 1e-4) {
  run 2 steps, seed 3
  cpus   = clusters.cpu(ranks: 1)
  mesh m = cpus axes (dp: rest, tp: 1)
  policy = models.load("model", context: 64 tokens)
  place policy on m by plans.ddp() * plans.tensor_parallel()
  opt      = optim.adamw(lr: lr)
  sampler  = generator(policy, temperature: 1.0)
  problems = data.jsonl("data.jsonl", prompt: "question", answer: "answer")
  step {
    s   = sampler.generate(problems.take(2 prompts), 4 samples/prompt, max_new: 6 tokens)
    r   = short(s)
    adv = grpo.advantages(r)
    update policy by opt in 1 update, minimising {
      mean(grpo.clip(ratio(logprob(policy, s), s.logprob), adv, 0.2..0.28), over: tokens)
    }
  }
  every 1 steps { checkpoint keep 1 }
}

fn short(s: Sample) -> float = 1.0 / (1.0 + len(s.completion))
"#;

/// Prompts for [`recipe`].
pub const DATA: &str = "{\"question\": \"the mill\", \"answer\": \"a\"}\n{\"question\": \"ten sacks\", \"answer\": \"b\"}\n";
