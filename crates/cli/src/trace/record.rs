//! The record of each statement: as a table, and as JSON.

use ::portals::trace::Reason;
use ::portals::v4::ListKind;
use comfy_table::{Table, presets};
use serde::Serialize;

use super::play::list_name;
use super::scenario::{Statement, What};

/// The effects of a statement; one object a line with `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Record {
    /// The scenario, or the file.
    pub(super) scenario: String,
    /// The line, from 1 on.
    pub(super) line: usize,
    /// As it was written.
    pub(super) statement: String,
    /// Entries that were asked, in the order of the lists.
    pub(super) compared: Vec<Compared>,
    /// Of a message: what became of it, as its sender hears.
    pub(super) outcome: Option<Outcome>,
    /// Events at the target.
    pub(super) events: Vec<Happened>,
}

/// An entry that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Compared {
    pub(super) entry: String,
    pub(super) list: String,
    pub(super) bits: u64,
    pub(super) ignore: u64,
    pub(super) from: String,
    pub(super) takes: bool,
    pub(super) why: String,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Outcome {
    pub(super) fail: String,
    pub(super) entry: Option<String>,
    pub(super) mlength: u64,
    pub(super) offset: u64,
    pub(super) text: String,
    /// The line's expectation, and whether it was met.
    pub(super) wanted: Option<String>,
    pub(super) expected: Option<bool>,
}

/// An event at the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Happened {
    pub(super) event: String,
    pub(super) entry: Option<String>,
    pub(super) mlength: u64,
    pub(super) text: String,
}

impl Record {
    pub(super) fn new(scenario: &str, statement: &Statement) -> Self {
        Self {
            scenario: scenario.to_owned(),
            line: statement.line,
            statement: statement.text.clone(),
            compared: Vec::new(),
            outcome: None,
            events: Vec::new(),
        }
    }
    /// Whether a message ended otherwise than its line expects.
    pub(super) fn is_unexpected(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| outcome.expected == Some(false))
    }
}

impl Compared {
    /// An entry that no line posted: it can't be.
    pub(super) fn unknown(list: ListKind, refuses: Option<Reason>) -> Self {
        let (entry, list, from) = ("?".to_owned(), list_name(list).to_owned(), String::new());
        Self { entry, list, bits: 0, ignore: 0, from, takes: refuses.is_none(), why: format!("{refuses:?}") }
    }
}

impl Happened {
    /// Events were lost before they were taken.
    pub(super) fn lost() -> Self {
        let text = "events were lost: the portal's queue was full".to_owned();
        Self { event: "Dropped".to_owned(), entry: None, mlength: 0, text }
    }
}

/// Lays a whole scenario out: a line a statement, and under it what it met, in columns that are the same for all.
pub(super) fn table(all: &[Record]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["", "entry", "list", "match bits", "ignored", "from", "what"]);
    let row = |first: &str, last: &str| [first, "", "", "", "", "", last].map(str::to_owned);
    let mut rows = 0;
    let mut marks = Vec::new();
    for record in all {
        marks.push((rows, record));
        for c in &record.compared {
            let sign = if c.takes { "=" } else { "-" };
            let (bits, ignore) = (format!("{:#x}", c.bits), format!("{:#x}", c.ignore));
            table.add_row([sign, &c.entry, &c.list, &bits, &ignore, &c.from, &c.why]);
            rows += 1;
        }
        if let Some(outcome) = &record.outcome {
            let missed = match (&outcome.wanted, outcome.expected) {
                (Some(wanted), Some(false)) => format!("  NOT AS EXPECTED: {wanted}"),
                _ => String::new(),
            };
            table.add_row(row(">", &format!("{}{missed}", outcome.text)));
            rows += 1;
        }
        for event in &record.events {
            table.add_row(row("!", &format!("{}: {}", event.event, event.text)));
            rows += 1;
        }
    }
    let text = table.to_string();
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    let mut out = String::new();
    out.push_str(lines[0]);
    for (at, (from, record)) in marks.iter().enumerate() {
        let to = marks.get(at + 1).map_or(rows, |next| next.0);
        out.push_str(&format!("\n{:>4}  {}", record.line, record.statement));
        for line in &lines[1 + from..1 + to] {
            out.push('\n');
            out.push_str(line);
        }
    }
    out
}

impl What {
    /// Whether something is sent.
    pub(super) fn is_message(&self) -> bool {
        matches!(self, Self::Message(_))
    }
}
