//! The table of results, printed and written into `docs/performance.md`.
use std::{fmt::Write as _, fs, path::Path};

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// One result.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was measured.
    pub what: String,
    /// What came out.
    pub measured: String,
    /// What it is compared with, and what came out of that in the same run.
    pub reference: String,
    /// The ratio of the two, where there is one.
    pub ratio: String,
}

impl Row {
    pub fn new(what: impl Into<String>, measured: impl Into<String>) -> Self {
        Self { what: what.into(), measured: measured.into(), reference: "-".into(), ratio: "-".into() }
    }

    pub fn against(mut self, reference: impl Into<String>, ratio: f64) -> Self {
        self.reference = reference.into();
        self.ratio = format!("{ratio:.2}");
        self
    }
}

/// The rows as Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = "| what | measured | reference | ratio |\n|---|---|---|---|\n".to_owned();
    for row in rows {
        writeln!(text, "| {} | {} | {} | {} |", row.what, row.measured, row.reference, row.ratio).unwrap();
    }
    text
}

/// Replaces what stands between the markers.
pub fn write(page: &Path, rows: &[Row]) {
    let text = fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page has a begin marker");
    let (_, after) = rest.split_once(END).expect("the page has an end marker");
    fs::write(page, format!("{before}{BEGIN}\n{}{END}{after}", markdown(rows))).unwrap();
}
