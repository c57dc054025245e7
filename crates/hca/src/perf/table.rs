//! The table that people read.

use comfy_table::{CellAlignment, Table, presets};

use super::json::Row;
use super::plan::Size;

/// Lays rows out as an aligned table.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "op",
        "size",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "GB/s",
        "messages/s",
        "timed",
        "errors",
        "CPUs",
    ]);
    for r in rows {
        table.add_row([
            format!("{} {}", r.service, r.op),
            Size(r.size).to_string(),
            micros(r.p50_ns),
            micros(r.p99_ns),
            micros(r.p999_ns),
            significant(r.gb_per_s),
            scaled(r.msgs_per_s),
            r.count.to_string(),
            r.errors.to_string(),
            r.placement.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn micros(ns: u64) -> String {
    match ns {
        0..=99_999 => format!("{:.2}", ns as f64 / 1e3),
        _ => format!("{:.1}", ns as f64 / 1e3),
    }
}

/// Three digits that count.
fn significant(x: f64) -> String {
    match x {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x if x >= 1.0 => format!("{x:.2}"),
        x => format!("{x:.3}"),
    }
}

fn scaled(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{} M", significant(x / 1e6)),
        x if x >= 1e3 => format!("{} k", significant(x / 1e3)),
        x => format!("{x:.0}  "),
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::tests::row;
    use super::super::plan::Op;
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let text = table(&[row(Op::Send, 8, 2700, 0.0123), row(Op::Write, 4 << 20, 1_500_000, 3.25)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        let end_of = |line: &str, part: &str| line.find(part).map(|at| at + part.len());
        assert_eq!(end_of(lines[0], "p50 us"), end_of(lines[1], "2.70"), "{text}");
        assert_eq!(end_of(lines[0], "p50 us"), end_of(lines[2], "1500.0"), "{text}");
        assert!(lines[2].contains("4 MiB") && lines[2].contains("3.25"), "{text}");
    }

    #[test]
    fn numbers_keep_three_digits_that_count() {
        assert_eq!((significant(3.256), significant(0.0123)), ("3.26".into(), "0.012".into()));
        assert_eq!((scaled(2_340_000.0), scaled(23_400.0)), ("2.34 M".into(), "23.4 k".into()));
    }
}
