//! Latency and bandwidth against size, as one SVG.

use std::ops::Range;
use std::path::Path;

use hca_perf::{Row, bytes_text};
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use thiserror::Error;

use super::table::label;

/// The reason why a plot was not drawn.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(super) enum PlotError {
    /// There is nothing to draw.
    #[error("no row has a latency or a bandwidth to draw; measure longer with --duration")]
    Empty,
    /// The file can't be written.
    #[error("the plot can't be written to {path}: {why}; name another file with --plot")]
    Write {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
}

/// One line of a chart.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Opens the file, so that an error is told before a measurement and not behind it. What is in the file stays.
///
/// # Errors
/// The file can't be written.
pub(super) fn look_at(path: &Path) -> Result<(), PlotError> {
    let opened = std::fs::File::options().append(true).create(true).open(path);
    opened.map(drop).map_err(|e| PlotError::Write { path: path.display().to_string(), why: e.to_string() })
}

/// Draws latency (p50) and bandwidth of `rows` against message size, both axes logarithmic.
///
/// # Errors
/// There is nothing to draw, or the file can't be written.
pub(super) fn plot(path: &Path, title: &str, rows: &[Row]) -> Result<(), PlotError> {
    let refuse =
        |e: &dyn std::fmt::Display| PlotError::Write { path: path.display().to_string(), why: e.to_string() };
    let p50 = |r: &Row| r.p50_ns as f64 / 1e3;
    let by_depth = rows.iter().any(|r| r.depth.is_some());
    let (name, x, axis): (Name, Value, _) = match by_depth {
        false => (label, |r| r.size as f64, Axis { desc: "message size", text: |n| bytes_text(n) }),
        true => (
            behind,
            |r| r.depth.unwrap_or(0).max(1) as f64,
            Axis { desc: "entries before the one that matches", text: |n| n.to_string() },
        ),
    };
    let latency = series(rows, name, x, p50);
    let bandwidth = series(rows, name, x, |r| r.gb_per_s);
    if latency.is_empty() && bandwidth.is_empty() {
        return Err(PlotError::Empty);
    }
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (1200, 560)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| refuse(&e))?;
        let root = root.titled(title, ("sans-serif", 20)).map_err(|e| refuse(&e))?;
        let (left, right) = root.split_horizontally(if by_depth { 1200 } else { 600 });
        chart(&left, "latency, p50 (us)", axis, &latency).map_err(|e| refuse(&e))?;
        chart(&right, "bandwidth (GB/s)", axis, &bandwidth).map_err(|e| refuse(&e))?;
        root.present().map_err(|e| refuse(&e))?;
    }
    std::fs::write(path, text).map_err(|e| refuse(&e))
}

/// The name of a row's line, among all rows.
type Name = fn(&Row, &[Row]) -> String;
/// The value of a row on an axis.
type Value = fn(&Row) -> f64;

/// The axis from left to right.
#[derive(Clone, Copy)]
struct Axis {
    desc: &'static str,
    text: fn(u64) -> String,
}

/// The name of a line that goes by the number of entries.
fn behind(row: &Row, rows: &[Row]) -> String {
    let entries = row.entries.map(|entries| entries.to_string()).unwrap_or_default();
    format!("{} behind {entries} entries", label(row, rows))
}

fn series(rows: &[Row], name: Name, x: Value, value: impl Fn(&Row) -> f64) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for r in rows {
        let y = value(r);
        if y <= 0.0 {
            continue;
        }
        let name = name(r, rows);
        let at = all.iter().position(|s| s.name == name).unwrap_or_else(|| {
            all.push(Series { name, points: Vec::new() });
            all.len() - 1
        });
        all[at].points.push((x(r), y));
    }
    all
}

/// The range of values, widened to powers of `base`.
fn range(values: impl Iterator<Item = f64> + Clone, base: f64) -> Range<f64> {
    let low = values.clone().fold(f64::MAX, f64::min);
    let high = values.fold(f64::MIN, f64::max);
    let (low, high) = (base.powf(low.log(base).floor()), base.powf(high.log(base).ceil()));
    if low < high { low..high } else { low / base..high * base }
}

/// An axis of powers of two.
struct Sizes(Range<f64>, Axis);

impl Ranged for Sizes {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;
    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let (low, high) = (self.0.start.ln(), self.0.end.ln());
        limit.0 + ((value.ln() - low) / (high - low) * f64::from(limit.1 - limit.0)).round() as i32
    }
    fn key_points<H: plotters::coord::ranged1d::KeyPointHint>(&self, _: H) -> Vec<f64> {
        let (low, high) = (self.0.start.log2().ceil() as i32, self.0.end.log2().floor() as i32);
        let step = if high - low > 10 { 3 } else { 1 };
        (low..=high).step_by(step).map(|p| f64::from(p).exp2()).collect()
    }
    fn range(&self) -> Range<f64> {
        self.0.clone()
    }
}
impl ValueFormatter<f64> for Sizes {
    fn format_ext(&self, value: &f64) -> String {
        (self.1.text)(*value as u64)
    }
}

fn chart<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    caption: &str,
    axis: Axis,
    all: &[Series],
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    let points = all.iter().flat_map(|s| s.points.iter());
    if points.clone().next().is_none() {
        return Ok(());
    }
    let x = Sizes(range(points.clone().map(|p| p.0), 2.0), axis);
    let y = range(points.map(|p| p.1), 10.0);
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .caption(caption, ("sans-serif", 17))
        .x_label_area_size(42)
        .y_label_area_size(62)
        .build_cartesian_2d(x, y.log_scale())?;
    chart
        .configure_mesh()
        .x_desc(axis.desc)
        .y_labels(12)
        .y_label_formatter(&|v| plain(*v))
        .label_style(("sans-serif", 14))
        .bold_line_style(BLACK.mix(0.18))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    for (i, s) in all.iter().enumerate() {
        // One colour an operation; one dash pattern a service would be lost in print, so a service shifts the hue.
        let [red, green, blue] = hca_perf::COLOURS[i % hca_perf::COLOURS.len()];
        let colour = RGBColor(red, green, blue);
        chart
            .draw_series(LineSeries::new(s.points.iter().copied(), colour.stroke_width(2)))?
            .label(&s.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(2)));
        chart.draw_series(s.points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(12)
        .label_font(("sans-serif", 14))
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
}

/// A number without an exponent and without trailing zeros.
fn plain(v: f64) -> String {
    let text = if v >= 1.0 { format!("{v:.0}") } else { format!("{v:.6}") };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::sample::row;
    use super::*;
    use hca_perf::Op;

    #[test]
    fn a_plot_shows_every_series_and_names_its_axes() {
        let path = std::env::temp_dir().join(format!("hca-plot-{}.svg", std::process::id()));
        let rows =
            [row(Op::Send, 8, 2700, 0.01), row(Op::Send, 4096, 3100, 2.0), row(Op::Atomic, 8, 5300, 0.02)];
        plot(&path, "a title", &rows).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for part in ["a title", "rc send", "rc atomic", "latency", "bandwidth", "message size", "4 KiB"] {
            assert!(svg.contains(part), "the plot lacks {part:?}");
        }
    }

    #[test]
    fn messages_past_other_entries_are_drawn_by_their_number() {
        let path = std::env::temp_dir().join(format!("hca-plot-depth-{}.svg", std::process::id()));
        let deep = |depth, p50_ns| Row {
            depth: Some(depth),
            entries: Some(hca_perf::portals::Entries::Wildcard),
            ..row(Op::Put, 8, p50_ns, 0.0)
        };
        plot(&path, "t", &[deep(0, 900), deep(1000, 2000)]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for part in ["behind wildcard entries", "entries before the one that matches", "512"] {
            assert!(svg.contains(part), "the plot lacks {part:?}");
        }
    }

    #[test]
    fn nothing_to_draw_and_an_unwritable_file_are_refused() {
        assert!(plot(Path::new("/dev/null"), "t", &[]).unwrap_err().to_string().contains("--duration"));
        let nowhere = plot(Path::new("/nonexistent/x.svg"), "t", &[row(Op::Send, 8, 9, 0.1)]);
        let text = nowhere.unwrap_err().to_string();
        assert!(text.contains("/nonexistent/x.svg") && text.contains("--plot"), "{text}");
    }

    #[test]
    fn a_flat_series_still_has_a_range() {
        assert_eq!(range([8.0].into_iter(), 2.0), 4.0..16.0);
        assert_eq!(range([3.0, 40.0].into_iter(), 10.0), 1.0..100.0);
    }
}
