//! Figures with the values of a paper beside ours, as one SVG: lines over message sizes, or bars.

use std::ops::Range;
use std::path::Path;

use hca_perf::bytes_text;
use plotters::prelude::*;

use crate::plot::PlotError;

/// A figure.
#[derive(Clone, Debug)]
pub enum Figure {
    /// Values over message sizes; both axes are logarithmic.
    Lines {
        /// The caption.
        title: String,
        /// The name and the unit of the values.
        value: &'static str,
        /// The lines, each with a name and its points: bytes, and a value.
        lines: Vec<(String, Vec<(f64, f64)>)>,
    },
    /// Groups of bars.
    Bars {
        /// The caption.
        title: String,
        /// The name and the unit of the values; the axis is linear.
        value: &'static str,
        /// The names of the bars of a group.
        names: Vec<String>,
        /// The groups, each with a name and the values of its bars.
        groups: Vec<(String, Vec<Option<f64>>)>,
    },
}

const WIDTH: u32 = 900;
const HEIGHT: u32 = 420;

/// The colour of the series of this number.
fn colour_of(i: usize) -> RGBColor {
    let [red, green, blue] = hca_perf::COLOURS[i % hca_perf::COLOURS.len()];
    RGBColor(red, green, blue)
}

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Draws the figures, one below the other.
///
/// # Errors
/// The file can't be written.
pub fn draw(path: &Path, figures: &[Figure]) -> Result<(), PlotError> {
    let mut text = String::new();
    let drawn = to_svg(&mut text, figures).map_err(|e| e.to_string());
    drawn
        .and_then(|()| std::fs::write(path, text).map_err(|e| e.to_string()))
        .map_err(|why| PlotError::at(path, why))
}

fn to_svg(text: &mut String, figures: &[Figure]) -> Drawn {
    let count = figures.len().max(1);
    let root = SVGBackend::with_string(text, (WIDTH, HEIGHT * count as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, figure) in root.split_evenly((count, 1)).iter().zip(figures) {
        match figure {
            Figure::Lines { title, value, lines } => self::lines(area, title, value, lines)?,
            Figure::Bars { title, value, names, groups } => bars(area, title, value, names, groups)?,
        }
    }
    root.present()
}

/// The range of values, widened to powers of `base`.
fn range(values: impl Iterator<Item = f64> + Clone, base: f64) -> Range<f64> {
    let positive = values.filter(|x| *x > 0.0);
    let low = positive.clone().fold(f64::MAX, f64::min).min(1e12);
    let high = positive.fold(f64::MIN_POSITIVE, f64::max).max(low);
    let (low, high) = (base.powf(low.log(base).floor()), base.powf(high.log(base).ceil()));
    if low < high { low..high } else { low / base..high * base }
}

type Area<'a, 'b> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn lines(area: &Area<'_, '_>, title: &str, value: &str, lines: &[(String, Vec<(f64, f64)>)]) -> Drawn {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (x, y) = (range(points().map(|p| p.0), 2.0), range(points().map(|p| p.1), 10.0));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 17))
        .x_label_area_size(38)
        .y_label_area_size(64)
        .margin_right(230)
        .build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes of a message")
        .y_desc(value)
        .x_label_formatter(&|x| bytes_text(x.round() as u64))
        .y_label_formatter(&|y| format!("{y}"))
        .label_style(("sans-serif", 12))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    for (i, (name, points)) in lines.iter().enumerate() {
        let colour = colour_of(i);
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|&p| Circle::new(p, 3, colour.filled())))?;
        key(area, i, name, colour)?;
    }
    Ok(())
}

fn bars(
    area: &Area<'_, '_>,
    title: &str,
    value: &str,
    names: &[String],
    groups: &[(String, Vec<Option<f64>>)],
) -> Drawn {
    let top = groups.iter().flat_map(|(_, values)| values.iter().flatten()).fold(0.0, |a: f64, &b| a.max(b));
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .caption(title, ("sans-serif", 17))
        .x_label_area_size(38)
        .y_label_area_size(64)
        .margin_right(230)
        .build_cartesian_2d(0.0..groups.len().max(1) as f64, 0.0..(top * 1.15).max(1e-9))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_label_formatter(&|y| format!("{y}"))
        .y_desc(value)
        .label_style(("sans-serif", 12))
        .light_line_style(BLACK.mix(0.05))
        .draw()?;
    let width = 0.8 / names.len().max(1) as f64;
    for (g, (name, values)) in groups.iter().enumerate() {
        let left = g as f64 + 0.1;
        for (i, bar) in values.iter().enumerate() {
            let Some(bar) = *bar else { continue };
            let at = left + i as f64 * width;
            let corners = [(at, 0.0), (at + width * 0.94, bar)];
            let colour = colour_of(i);
            chart.draw_series([Rectangle::new(corners, colour.mix(0.8).filled())])?;
            let (x, y) = chart.backend_coord(&(at, bar));
            area.draw(&Text::new(
                short(bar),
                (x - area.get_base_pixel().0, y - area.get_base_pixel().1 - 13),
                ("sans-serif", 11),
            ))?;
        }
        let (x, y) = chart.backend_coord(&(left, 0.0));
        area.draw(&Text::new(
            name.as_str(),
            (x - area.get_base_pixel().0, y - area.get_base_pixel().1 + 6),
            ("sans-serif", 12),
        ))?;
    }
    for (i, name) in names.iter().enumerate() {
        key(area, i, name, colour_of(i))?;
    }
    Ok(())
}

fn short(x: f64) -> String {
    if x >= 10.0 {
        format!("{x:.0}")
    } else if x >= 1.0 {
        format!("{x:.1}")
    } else {
        format!("{x:.2}")
    }
}

/// A name to the right of a figure.
fn key(area: &Area<'_, '_>, i: usize, name: &str, colour: RGBColor) -> Drawn {
    let (x, y) = (WIDTH as i32 - 224, 48 + 20 * i as i32);
    area.draw(&Rectangle::new([(x, y), (x + 12, y + 10)], colour.filled()))?;
    area.draw(&Text::new(name, (x + 18, y - 1), ("sans-serif", 12)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_name_their_lines_and_bars() {
        let lines = vec![("ours".to_owned(), vec![(8.0, 1.0), (4096.0, 20.0)]), ("none".to_owned(), vec![])];
        let groups = vec![("reliable".to_owned(), vec![Some(52.0), None])];
        let names = vec!["the paper's".to_owned(), "not built".to_owned()];
        let mut svg = String::new();
        let figures = [
            Figure::Lines { title: "round trip".into(), value: "us", lines },
            Figure::Bars { title: "a share".into(), value: "%", names, groups },
            Figure::Lines { title: "nothing".into(), value: "us", lines: Vec::new() },
        ];
        to_svg(&mut svg, &figures).unwrap();
        for part in
            ["round trip", "ours", "4 KiB", "a share", "reliable", "the paper", "52", "not built", "nothing"]
        {
            assert!(svg.contains(part), "the figures lack {part:?}");
        }
    }
}
