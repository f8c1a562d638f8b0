//! Result tables for the terminal and `docs/performance.md`.
use std::{fmt::Write as _, fs, path::Path};

/// One result.
#[derive(Clone, Debug)]
pub struct Row {
    /// Measured quantity.
    pub what: String,
    /// Measured value.
    pub measured: String,
    /// Reference with its value in the same run.
    pub reference: String,
    /// Ratio of both values, if meaningful.
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

/// Formats the rows as Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = "| what | measured | reference | ratio |\n|---|---|---|---|\n".to_owned();
    for row in rows {
        writeln!(text, "| {} | {} | {} | {} |", row.what, row.measured, row.reference, row.ratio).unwrap();
    }
    text
}

/// Replaces a section's table and keeps the other sections.
pub fn write(page: &Path, section: &str, rows: &[Row]) {
    let (begin, end) = (format!("<!-- bench:begin {section} -->"), format!("<!-- bench:end {section} -->"));
    let text = fs::read_to_string(page).unwrap();
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("the page lacks {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("the page lacks {end}"));
    fs::write(page, format!("{before}{begin}\n{}{end}{after}", markdown(rows))).unwrap();
}
