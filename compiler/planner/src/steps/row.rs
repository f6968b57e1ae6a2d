//! Rows of a table of whole steps.
//!
//! In: CSV with a header; columns are found by name. Out: rows, or why one says too little. A layout that the
//! resolved recipe states (`y_..`) goes before the one that the table prints.

use std::collections::BTreeMap;

use serde::Serialize;

/// Axes of the trainers. Experts fold dp, cp and tp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Mesh {
    pub tp: usize,
    pub cp: usize,
    pub ep: usize,
    pub pp: usize,
    pub dp: usize,
}

/// Software that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    Megatron,
    Dtensor,
}

/// A measured step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub version: String,
    /// Path of the recipe in NeMo RL; empty where none is named.
    pub recipe: String,
    /// `GRPO`, `DAPO`.
    pub algorithm: String,
    /// Where the numbers are published.
    pub source: String,
    pub model: String,
    pub gpu: String,
    pub fp8: bool,
    pub backend: Backend,
    /// Longest sequence, prompt included, in tokens.
    pub max_seq: u32,
    /// Mean number of generated tokens.
    pub avg_seq: f64,
    pub gpus: usize,
    pub prompts: usize,
    pub group: usize,
    /// Samples of an update.
    pub batch: usize,
    /// Samples of a micro-batch, as the budget of tokens is stated.
    pub micro: usize,
    pub mesh: Mesh,
    /// Activations between products of tp are cut over tokens.
    pub sp: bool,
    pub gen_tp: usize,
    pub gen_gpus: usize,
    pub colocated: bool,
    /// Updates between the weights that made a sample and those that it trains.
    pub delay: usize,
    pub step_s: f64,
    pub train_s: Option<f64>,
    pub refit_s: Option<f64>,
    pub gen_s: Option<f64>,
    pub logprob_s: Option<f64>,
}

impl Row {
    /// Updates of a step.
    pub fn updates(&self) -> usize {
        (self.prompts * self.group / self.batch.max(1)).max(1)
    }

    /// Is its version this one, or a later one?
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        let mut parts = self.version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
        let mut next = || parts.next().and_then(|p| p.parse().ok()).unwrap_or(0u32);
        (next(), next()) >= (major, minor)
    }
}

/// The rows of `text` by line.
#[allow(clippy::type_complexity)]
pub fn read(text: &str) -> Result<Vec<(usize, Result<Row, String>)>, String> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| e.to_string())?.clone();
    for needed in ["version", "model", "gpu", "gpus", "max_seq", "avg_seq", "step_s"] {
        if !header.iter().any(|h| h == needed) {
            return Err(format!("the table has no column `{needed}`"));
        }
    }
    let mut rows = vec![];
    for record in reader.records() {
        let record = record.map_err(|e| e.to_string())?;
        let line = record.position().map_or(0, |p| p.line() as usize);
        let cells: BTreeMap<&str, &str> =
            header.iter().zip(&record).filter(|(_, v)| !v.is_empty()).collect();
        rows.push((line, Cells(cells).row()));
    }
    Ok(rows)
}

/// More samples, tokens or devices than any step has.
const MOST: f64 = 1e8;

struct Cells<'a>(BTreeMap<&'a str, &'a str>);

impl Cells<'_> {
    fn text(&self, name: &str) -> Result<&str, String> {
        self.0.get(name).copied().ok_or_else(|| format!("`{name}` is not stated"))
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.parse().ok()
    }

    fn need(&self, name: &str) -> Result<f64, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("`{name}` is {text}, not a number"))
    }

    /// Numbers are none that no run has.
    fn sane(&self) -> Result<(), String> {
        let number = |(name, text): (&&str, &&str)| {
            let x: f64 = text.parse().ok()?;
            (!(0.0..=MOST).contains(&x)).then(|| format!("`{name}` is {text}"))
        };
        let texts = ["version", "tag", "recipe", "note", "source"];
        let wrong = self.0.iter().filter(|(n, _)| !texts.contains(n)).find_map(number);
        wrong.map_or(Ok(()), Err)
    }

    /// The first of `names` that is stated.
    fn count(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|n| self.number(n)).map(|x| x as usize)
    }

    fn row(&self) -> Result<Row, String> {
        let version = self.text("version")?;
        if version.ends_with("superseded") {
            let note = self.text("note").unwrap_or("another row corrects it");
            return Err(format!("withdrawn by its source: {note}"));
        }
        if self.text("algorithm") == Ok("SWE") {
            return Err("several turns with tools between them; the row states neither their number nor their lengths".into());
        }
        self.sane()?;
        let backend = match self.text("backend").unwrap_or("megatron") {
            "megatron" => Backend::Megatron,
            "dtensor" => Backend::Dtensor,
            other => return Err(format!("no rates for the backend `{other}`")),
        };
        let gpus = self.need("gpus")? as usize;
        let delay = self.delay()?;
        let colocated = self.text("y_colocated").map_or(delay == 0, |v| v != "False");
        // Samplers of their own get half, where nothing is stated.
        let half = if colocated { gpus } else { gpus / 2 };
        let train_gpus = self.count(&["y_train_gpus"]).unwrap_or(half);
        let samples = self.count(&["gen_gbs"]).ok_or("`gen_gbs` is not stated")?;
        let model = self.text("model")?.to_string();
        let mesh = self.mesh(train_gpus)?;
        let group = self.count(&["y_gens"]).unwrap_or(32).clamp(1, samples.max(1));
        let row =
            Row {
                version: version.to_string(),
                recipe: self.text("recipe").unwrap_or("").to_string(),
                algorithm: self.text("algorithm").unwrap_or("GRPO").to_string(),
                sp: self.text("y_sp").map_or(mesh.tp > 1, |v| v == "True"),
                source: self.text("source").unwrap_or("").to_string(),
                model,
                gpu: self.text("gpu")?.to_string(),
                fp8: self.text("precision") == Ok("FP8"),
                backend,
                max_seq: self.need("max_seq")? as u32,
                avg_seq: self.need("avg_seq")?,
                gpus,
                prompts: self.count(&["y_prompts"]).unwrap_or(samples / group),
                group,
                batch: self.count(&["y_train_gbs", "train_gbs"]).unwrap_or(samples),
                micro: self.count(&["y_mbs"]).unwrap_or(1).max(1),
                mesh,
                gen_tp: self.count(&["y_gen_tp", "gen_tp"]).ok_or("`gen_tp` is not stated")?,
                gen_gpus: self
                    .count(&["y_gen_gpus"])
                    .unwrap_or(gpus.saturating_sub(if colocated { 0 } else { train_gpus })),
                colocated,
                delay,
                step_s: self.need("step_s")?,
                train_s: self.number("train_s"),
                refit_s: self.number("refit_s"),
                gen_s: self.number("gen_s"),
                logprob_s: self.number("logprob_s"),
            };
        if row.gen_tp == 0 || row.gen_gpus < row.gen_tp {
            return Err(format!("{} GPUs hold no sampler of {}", row.gen_gpus, row.gen_tp));
        }
        Ok(row)
    }

    /// `on-policy` is 0, `8-step-off` is 8.
    fn delay(&self) -> Result<usize, String> {
        if let Some(age) = self.count(&["y_max_age"]) {
            return Ok(age);
        }
        match self.text("policy").unwrap_or("on-policy") {
            "on-policy" => Ok(0),
            p => {
                let n = p.split('-').next().and_then(|n| n.parse().ok());
                n.ok_or_else(|| format!("`{p}` states no number of steps"))
            }
        }
    }

    fn mesh(&self, gpus: usize) -> Result<Mesh, String> {
        let axis = |y: &str, t: &str| self.count(&[y, t]).unwrap_or(1).max(1);
        let (tp, cp) = (axis("y_tp", "train_tp"), axis("y_cp", "train_cp"));
        let (ep, pp) = (axis("y_ep", "train_ep"), axis("y_pp", "train_pp"));
        let part = [tp, cp, pp].iter().fold(1usize, |all, n| all.saturating_mul(*n));
        if part > gpus || !gpus.is_multiple_of(part) {
            return Err(format!("{gpus} GPUs are no multiple of tp {tp} x cp {cp} x pp {pp}"));
        }
        Ok(Mesh { tp, cp, ep, pp, dp: gpus / part })
    }
}
