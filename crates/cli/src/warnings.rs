//! The library's warnings, on a command's standard error.
//!
//! There are few: a port that is not up yet, an adapter that refuses a useful setting. Warnings that clients of a
//! server can cause again and again end after some lines.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines that are shown of each [`WINDOW`].
const LINES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);

/// Prints warnings and errors of the library from now on.
pub(crate) fn listen() {
    let listener = Warnings(Mutex::new(Window { begun: Instant::now(), seen: 0 }));
    // Another subscriber is installed already, and stays.
    let _ = tracing::subscriber::set_global_default(listener);
}

struct Warnings(Mutex<Window>);

/// How many there were lately.
struct Window {
    begun: Instant,
    seen: u32,
}

impl Window {
    /// Counts a warning; returns the lines to print, if any.
    fn take(&mut self, now: Instant, line: String) -> Vec<String> {
        let mut said = Vec::new();
        if now.saturating_duration_since(self.begun) >= WINDOW {
            let left_out = self.seen.saturating_sub(LINES);
            if left_out > 0 {
                said.push(format!("{left_out} more were suppressed"));
            }
            (self.begun, self.seen) = (now, 0);
        }
        self.seen = self.seen.saturating_add(1);
        if self.seen <= LINES {
            said.push(line);
        }
        said
    }
}

/// An event in one line: its message, then its fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A string takes everything.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        };
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.fields, ", {}: {value}", field.name());
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = format!("{}{}", line.message, line.fields);
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now(), line);
        for line in said {
            // Standard error is closed: the warning is lost.
            let _ = writeln!(std::io::stderr(), "warning: {line}");
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_warnings_in_a_short_time_the_first_are_told_and_how_many_were_not() {
        let begun = Instant::now();
        let mut window = Window { begun, seen: 0 };
        let told: usize = (0..100).map(|i| window.take(begun, i.to_string()).len()).sum();
        assert_eq!(told, LINES as usize);
        let later = begun + WINDOW;
        assert_eq!(window.take(later, "again".into()), ["80 more were suppressed", "again"]);
        assert_eq!(window.take(later, "once more".into()), ["once more"]);
        assert_eq!(window.take(later + WINDOW, "later".into()), ["later"], "none was left out");
    }

    #[test]
    fn a_line_has_the_message_and_then_what_it_names() {
        struct Keep(Mutex<Vec<String>>);
        impl Subscriber for &'static Keep {
            fn enabled(&self, _: &Metadata<'_>) -> bool {
                true
            }
            fn new_span(&self, _: &Attributes<'_>) -> Id {
                Id::from_u64(1)
            }
            fn record(&self, _: &Id, _: &Record<'_>) {}
            fn record_follows_from(&self, _: &Id, _: &Id) {}
            fn event(&self, event: &Event<'_>) {
                let mut line = Line::default();
                event.record(&mut line);
                self.0.lock().unwrap().push(format!("{}{}", line.message, line.fields));
            }
            fn enter(&self, _: &Id) {}
            fn exit(&self, _: &Id) {}
        }
        static KEEP: Keep = Keep(Mutex::new(Vec::new()));
        let e = std::io::Error::other("no luck");
        tracing::subscriber::with_default(&KEEP, || {
            tracing::warn!(ms = 20, name = "a.b", %e, "the port {} is down", 1);
        });
        assert_eq!(*KEEP.0.lock().unwrap(), ["the port 1 is down, ms: 20, name: a.b, e: no luck"]);
    }
}
