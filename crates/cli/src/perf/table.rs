//! The table of results for users.

use comfy_table::{Cell, CellAlignment, Table, presets};
use hca_perf::{Row, bytes_text};

/// Columns of a terminal.
const WIDTH: usize = 80;
/// Names of columns, and their short forms.
const SHORT: [(&str, &str); 2] = [("messages/s", "msgs/s"), ("before it", "before")];

/// The label of a row. It names a setting if rows differ in it.
pub(super) fn label(row: &Row, rows: &[Row]) -> String {
    let Some(eager) = row.eager_bytes else { return format!("{} {}", row.service, row.op) };
    match rows.iter().any(|other| other.eager_bytes != Some(eager)) {
        true => format!("{}, eager {}", row.op, bytes_text(eager)),
        false => row.op.to_string(),
    }
}

/// Lays rows of messages past other entries out: what an entry costs is held against the row of the same entries that
/// has the fewest.
pub(super) fn depth_table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let header =
        ["op", "before it", "entries", "p50 us", "p99 us", "p99.9 us", "ns/entry", "timed", "errors", "CPUs"];
    table.set_header(header);
    for r in rows {
        table.add_row([
            label(r, rows),
            r.depth.map(|depth| depth.to_string()).unwrap_or_default(),
            r.entries.map(|entries| entries.to_string()).unwrap_or_default(),
            micros(r.p50_ns),
            micros(r.p99_ns),
            micros(r.p999_ns),
            ns_an_entry(r, rows).map(|ns| format!("{ns:.2}")).unwrap_or_default(),
            r.count.to_string(),
            r.errors.to_string(),
            r.placement.to_string(),
        ]);
    }
    for column in [1, 3, 4, 5, 6, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    fitted(table)
}

fn ns_an_entry(row: &Row, rows: &[Row]) -> Option<f64> {
    let alike = |r: &&Row| (r.entries, r.eager_bytes) == (row.entries, row.eager_bytes);
    let least = rows.iter().filter(alike).min_by_key(|r| r.depth)?;
    let more = row.depth?.checked_sub(least.depth?).filter(|&more| more > 0)?;
    Some((row.p50_ns as f64 - least.p50_ns as f64) / more as f64)
}

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
            label(r, rows),
            bytes_text(r.size),
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
    fitted(table)
}

/// The table as text. One that is too wide has its columns close to each other, and
/// short names for them.
fn fitted(mut table: Table) -> String {
    let text = table.trim_fmt();
    if text.lines().all(|line| line.chars().count() <= WIDTH) {
        return text;
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    let header: Vec<String> =
        table.header().into_iter().flat_map(|row| row.cell_iter()).map(Cell::content).collect();
    let short =
        |name: &String| SHORT.iter().find(|(long, _)| long == name).map(|(_, short)| (*short).to_owned());
    table.set_header(header.into_iter().map(|name| short(&name).unwrap_or(name)));
    table.trim_fmt()
}

fn micros(ns: u64) -> String {
    match ns {
        0..=99_999 => format!("{:.2}", ns as f64 / 1e3),
        10_000_000.. => format!("{:.0}", ns as f64 / 1e3),
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
    use super::super::sample::row;
    use super::*;
    use hca_perf::Op;
    use hca_perf::portals::Entries;

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
    fn no_table_is_wider_than_a_terminal() {
        use hca_perf::Service;
        use hca_perf::probe::Placement;
        let fastest = Row { count: 1_234_567, ..row(Op::Write, 256 << 10, 310, 123.0) };
        for (p50_ns, placement) in [(12_345_678, Placement::Mixed), (1_234_567_890, Placement::Unknown)] {
            let slow = Row { service: Service::Uc, placement, ..row(Op::Atomic, 8, p50_ns, 0.001) };
            let rows = [fastest.clone(), Row { p999_ns: slow.p99_ns, ..slow }];
            let deep = rows.clone().map(|row| Row {
                op: Op::PutAck,
                depth: Some(4096),
                entries: Some(Entries::Wildcard),
                eager_bytes: Some(4096),
                ..row
            });
            for text in [table(&rows), depth_table(&deep)] {
                assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            }
        }
    }

    #[test]
    fn what_an_entry_costs_is_the_difference_to_the_shortest_list_of_its_kind() {
        let deep = |depth, entries, p50_ns| Row {
            depth: Some(depth),
            entries: Some(entries),
            eager_bytes: Some(4096),
            ..row(Op::Put, 8, p50_ns, 0.0)
        };
        let rows = [
            deep(0, Entries::Exact, 1000),
            deep(100, Entries::Exact, 1000),
            deep(0, Entries::Wildcard, 2000),
            deep(100, Entries::Wildcard, 2500),
        ];
        let text = depth_table(&rows);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[2].contains(" 0.00 ") && lines[4].contains(" 5.00 "), "{text}");
        assert!(lines[4].contains("wildcard") && lines[4].starts_with("put  "), "{text}");
    }

    #[test]
    fn a_setting_is_told_where_rows_differ_in_it() {
        let eager = |bytes| Row { eager_bytes: Some(bytes), ..row(Op::Put, 8, 1, 1.0) };
        let rows = [eager(1024), eager(4096)];
        assert_eq!(label(&rows[1], &rows), "put, eager 4 KiB");
        assert_eq!(label(&rows[1], &rows[1..]), "put");
        assert_eq!(label(&row(Op::Send, 8, 1, 1.0), &[]), "rc send");
    }

    #[test]
    fn numbers_keep_three_digits_that_count() {
        assert_eq!((significant(3.256), significant(0.0123)), ("3.26".into(), "0.012".into()));
        assert_eq!((scaled(2_340_000.0), scaled(23_400.0)), ("2.34 M".into(), "23.4 k".into()));
    }
}
