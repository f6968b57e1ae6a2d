//! A table of measured runs: one value a row, with the model, the layout and the machine it was measured on.
//!
//! In: CSV with a header (the columns of [`Row`]; unknown ones are left alone, missing ones empty). Out: rows, or
//! the line that cannot be read.

use serde::Deserialize;

/// One measured value. Empty cells are `None`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Row {
    pub source: String,
    pub task: String,
    pub model: String,
    pub layers: Option<usize>,
    pub hidden: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
    /// A number, or `mla`.
    pub head_dim: String,
    pub ffn: Option<usize>,
    pub vocab: Option<usize>,
    pub experts: Option<usize>,
    pub topk: Option<usize>,
    pub moe_ffn: Option<usize>,
    pub gpu: String,
    pub gpus: Option<usize>,
    pub tp: Option<usize>,
    pub pp: Option<usize>,
    pub vpp: Option<usize>,
    pub cp: Option<usize>,
    pub ep: Option<usize>,
    pub dp: Option<usize>,
    pub fsdp: Option<usize>,
    pub sp: String,
    pub recompute: String,
    pub offload: String,
    pub mbs: Option<f64>,
    pub gbs: Option<f64>,
    pub seq: Option<f64>,
    pub precision: String,
    pub framework: String,
    pub metric: String,
    pub value: f64,
    pub unit: String,
    pub note: String,
    /// Line in the table.
    #[serde(skip)]
    pub line: u64,
}

impl Row {
    /// Who measured it: the repository or the first author, which all tables of one publication share.
    pub fn publisher(&self) -> &str {
        let first = self.source.split_whitespace().next().unwrap_or("");
        first.trim_end_matches([':', ',', '.'])
    }
}

/// Reads a table.
pub fn read(text: &str) -> Result<Vec<Row>, String> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| e.to_string())?.clone();
    for need in ["model", "gpu", "metric", "value"] {
        if !header.iter().any(|h| h == need) {
            return Err(format!("the table has no column `{need}`"));
        }
    }
    let mut rows = vec![];
    for record in reader.records() {
        let record = record.map_err(|e| e.to_string())?;
        let line = record.position().map_or(0, |p| p.line());
        let mut row: Row =
            record.deserialize(Some(&header)).map_err(|e| format!("line {line}: {e}"))?;
        row.line = line;
        rows.push(row);
    }
    Ok(rows)
}
