//! A table of measured runs: one value a row, with the model, the layout and the machine it was measured on.
//!
//! In: CSV with a header (the columns of [`Row`]; unknown ones are left alone, missing ones empty). Out: rows; one with a cell that is
//! no number says so, and the others stand.

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
    /// What is wrong with a cell.
    #[serde(skip)]
    pub wrong: Option<String>,
}

/// Columns of whole numbers, and of numbers.
const WHOLE: &[&str] = &[
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "topk", "moe_ffn", "gpus",
    "tp", "pp", "vpp", "cp", "ep", "dp", "fsdp",
];
const NUMBERS: &[&str] = &["mbs", "gbs", "seq", "value"];

/// A cell as its column has it: tools write `8.0` for 8, and `nan` for nothing.
fn cell(column: &str, text: &str) -> Result<String, String> {
    let text = text.trim();
    let (whole, number) = (WHOLE.contains(&column), NUMBERS.contains(&column));
    if !whole && !number {
        return Ok(text.into());
    }
    if ["", "-", "nan", "na", "n/a", "none", "null"].contains(&text.to_lowercase().as_str()) {
        return Ok(String::new());
    }
    let wrong = |what: &str| Err(format!("`{column}` is `{text}`, not {what}"));
    match text.replace(',', "").parse::<f64>() {
        Ok(x) if whole && x.fract() == 0.0 && (0.0..1e12).contains(&x) => Ok(format!("{x:.0}")),
        // What does not fit is a 0.
        Ok(x) if number && (0.0..1e15).contains(&x) && (x > 0.0 || column == "value") => {
            Ok(x.to_string())
        }
        _ if whole => wrong("a whole number"),
        _ => wrong("a number above 0"),
    }
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
        let mut wrong = None;
        let mut cells = csv::StringRecord::new();
        for (column, text) in header.iter().zip(&record) {
            cells.push_field(&cell(column, text).unwrap_or_else(|why| {
                wrong.get_or_insert(why);
                String::new()
            }));
        }
        let value = header.iter().position(|h| h == "value").and_then(|i| cells.get(i));
        if wrong.is_none() && value.is_none_or(str::is_empty) {
            wrong = Some("no value".into());
        }
        if value.is_none_or(str::is_empty) {
            cells = cells
                .iter()
                .zip(&header)
                .map(|(c, h)| if h == "value" { "0" } else { c })
                .collect();
        }
        let row: Row = cells.deserialize(Some(&header)).map_err(|e| format!("line {line}: {e}"))?;
        rows.push(Row { line, wrong, ..row });
    }
    Ok(rows)
}
