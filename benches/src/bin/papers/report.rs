//! The tables of a paper: its value, ours, the ratio, and what can be compared.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use hca_benches::figures::{self, Figure};
use hca_perf::Failure;

/// The unit of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Microseconds.
    Us,
    /// Millions of bytes a second.
    Mb,
    /// A share of the whole, in per cent.
    Percent,
    /// Bytes.
    Bytes,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Us => "us",
            Self::Mb => "MB/s",
            Self::Percent => "%",
            Self::Bytes => "B",
        }
    }
}

/// A line of a table, or a point of a figure.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: Unit,
    /// The paper's value; `None` where its text has none.
    pub(crate) paper: Option<f64>,
    /// Ours, in the same unit; `None` for what is not built.
    pub(crate) ours: Option<f64>,
    pub(crate) note: String,
}

impl Row {
    pub(crate) fn new(
        what: impl Into<String>,
        unit: Unit,
        paper: impl Into<Option<f64>>,
        ours: impl Into<Option<f64>>,
        note: impl Into<String>,
    ) -> Self {
        Self { what: what.into(), unit, paper: paper.into(), ours: ours.into(), note: note.into() }
    }
    fn ratio(&self) -> Option<f64> {
        let (paper, ours) = (self.paper?, self.ours?);
        (paper > 0.0).then(|| ours / paper)
    }
}

/// The output of a run.
pub(crate) struct Report {
    json: bool,
    paper: &'static str,
    figures: Vec<Figure>,
}

impl Report {
    pub(crate) fn new(json: bool, paper: &'static str) -> Self {
        Self { json, paper, figures: Vec::new() }
    }
    /// A line beside the tables.
    pub(crate) fn say(&self, text: &str) {
        if !self.json {
            println!("{text}");
        }
    }
    /// Prints a table, or the points of a figure.
    pub(crate) fn show(&self, title: &str, rows: &[Row]) {
        if self.json {
            for row in rows {
                let object = serde_json::json!({
                    "paper": self.paper, "table": title, "what": row.what, "unit": row.unit.name(),
                    "published": row.paper, "ours": row.ours, "ratio": row.ratio(), "note": row.note,
                });
                println!("{object}");
            }
            return;
        }
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["", "paper", "ours", "unit", "ours / paper", "what can be compared"]);
        table
            .column_iter_mut()
            .enumerate()
            .filter(|(i, _)| [1, 2, 4].contains(i))
            .for_each(|(_, c)| c.set_cell_alignment(CellAlignment::Right));
        for row in rows {
            table.add_row([
                row.what.clone(),
                row.paper.map(figure).unwrap_or_default(),
                row.ours.map(figure).unwrap_or_default(),
                row.unit.name().to_owned(),
                row.ratio().map(figure).unwrap_or_default(),
                row.note.clone(),
            ]);
        }
        println!("\n{title}\n{}", table.trim_fmt());
    }
    /// Keeps a figure for the plot.
    pub(crate) fn figure(&mut self, figure: Figure) {
        self.figures.push(figure);
    }
    /// Draws the figures.
    pub(crate) fn draw(&self, path: &Path) -> Result<(), Failure> {
        figures::draw(path, &self.figures)?;
        self.say(&format!("\nDrawn to {}", path.display()));
        Ok(())
    }
}

/// A value with three digits.
pub(crate) fn figure(x: f64) -> String {
    let digits = match x.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        x if x >= 1.0 => 2,
        x if x >= 0.1 => 3,
        x if x < 5e-5 => 0,
        _ => 4,
    };
    format!("{x:.digits$}")
}
