//! How many times better ours is than each peer or floor, as one SVG: a bar a comparison, to the right of 1 where ours
//! is better.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;
use thiserror::Error;

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// What was compared, over which fabric.
    pub what: String,
    /// The peer or the floor.
    pub peer: String,
    /// How many times better ours is, the median.
    pub better: f64,
    /// From the pair in which it was least so to that in which it was most so.
    pub span: Range<f64>,
    /// How the CPUs stood.
    pub placement: String,
}

/// Why a plot was not drawn.
#[derive(Debug, Error)]
#[error("the plot can't be written to {path}: {why}; name another file with --plot")]
pub struct PlotError {
    path: String,
    why: String,
}

impl PlotError {
    pub(crate) fn at(path: &Path, why: impl ToString) -> Self {
        Self { path: path.display().to_string(), why: why.to_string() }
    }
}

const WIDTH: u32 = 1100;
const BAR_HEIGHT: u32 = 20;
/// What lies around the bars, with the axis.
const FRAME_HEIGHT: u32 = 96;
/// Where the names end.
const NAMES_WIDTH: u32 = 520;
/// Where the names' columns begin: what, peer, placement, median.
const COLUMNS: [i32; 4] = [14, 210, 405, 462];
const AHEAD: RGBColor = RGBColor(31, 120, 90);
const BEHIND: RGBColor = RGBColor(200, 90, 40);

/// Draws the bars from above to below. `beside` is what ours stands beside, in words.
///
/// # Errors
/// The file can't be written.
pub fn plot(path: &Path, beside: &str, bars: &[Bar]) -> Result<(), PlotError> {
    let mut text = String::new();
    draw(&mut text, beside, bars).map_err(|e| PlotError::at(path, e))?;
    std::fs::write(path, text).map_err(|e| PlotError::at(path, e))
}

fn draw(text: &mut String, beside: &str, bars: &[Bar]) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let height = FRAME_HEIGHT + BAR_HEIGHT * bars.len() as u32;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let count = bars.len() as f64;
    let axis = reach(bars);
    let mut chart = ChartBuilder::on(&root)
        .margin(14)
        .caption(
            format!("ours beside {beside}: how many times better (to the right), or worse"),
            ("sans-serif", 17),
        )
        .x_label_area_size(30)
        .margin_left(NAMES_WIDTH)
        .build_cartesian_2d(axis.clone().log_scale(), 0.0..count.max(1.0))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|x| format!("{x}"))
        .label_style(("sans-serif", 13))
        .bold_line_style(BLACK.mix(0.18))
        .light_line_style(BLACK.mix(0.06))
        .draw()?;
    for (i, bar) in bars.iter().enumerate() {
        let middle = count - i as f64 - 0.5;
        let colour = if bar.better >= 1.0 { AHEAD } else { BEHIND };
        let corners = [(1.0, middle - 0.34), (bar.better, middle + 0.34)];
        chart.draw_series([Rectangle::new(corners, colour.mix(0.75).filled())])?;
        let whole = [bar.span.start, bar.span.end].map(|x| (x.clamp(axis.start, axis.end), middle));
        chart.draw_series([PathElement::new(whole, BLACK.mix(0.6).stroke_width(1))])?;
        let y = chart.backend_coord(&(1.0, middle)).1 - 5;
        let columns = [&bar.what, &bar.peer, &bar.placement, &format!("{:.2}", bar.better)];
        for (text, x) in columns.into_iter().zip(COLUMNS) {
            root.draw(&Text::new(text.as_str(), (x, y), ("sans-serif", 13)))?;
        }
    }
    chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, count)], BLACK.stroke_width(1))])?;
    root.present()
}

/// From the worst to the best median, in powers of 10 around 1. A pair that something disturbed may lie beyond.
fn reach(bars: &[Bar]) -> Range<f64> {
    let all = || bars.iter().map(|b| b.better);
    let low = all().fold(0.5, f64::min).log10().floor();
    let high = all().fold(2.0, f64::max).log10().ceil();
    10_f64.powf(low)..10_f64.powf(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(what: &str, better: f64) -> Bar {
        let span = better * 0.9..better * 1.2;
        Bar { what: what.to_owned(), peer: "UCX tags".to_owned(), better, span, placement: "near".to_owned() }
    }

    #[test]
    fn a_plot_names_every_comparison() {
        let mut svg = String::new();
        draw(&mut svg, "each peer", &[bar("shm send 8 B latency", 1.4), bar("udp put rate", 0.2)]).unwrap();
        for part in ["each peer", "shm send 8 B latency", "udp put rate", "UCX tags", "1.40", "0.20", "near"]
        {
            assert!(svg.contains(part), "the plot lacks {part:?}");
        }
    }

    #[test]
    fn the_axis_holds_every_bar_and_the_one() {
        assert_eq!(reach(&[bar("a", 30.0), bar("b", 0.05)]), 0.01..100.0);
        assert_eq!(reach(&[]), 0.1..10.0);
    }

    #[test]
    fn an_unwritable_file_is_named() {
        let text = plot(Path::new("/nonexistent/x.svg"), "", &[]).unwrap_err().to_string();
        assert!(text.contains("/nonexistent/x.svg") && text.contains("--plot"), "{text}");
    }
}
