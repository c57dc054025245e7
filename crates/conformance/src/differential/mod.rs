//! Differential tests: the same random script on several fabrics has to have the same outcome.
//!
//! A script is the actions of two programs, one on each of two adapters: all operations in lists and inline, of lengths
//! at every edge, signalled or not, fenced or not, with receive requests in time, late, missing, too small or
//! unwritable, shared receive queues, keys that are wrong or go away, drained, failed, reset and rebuilt queue pairs.
//! The test compares everything that verbs guarantee: the bytes of all memory of both sides, the completions of each
//! queue in their order, states, asynchronous events, and refusals. The script avoids cases that the IBA leaves open
//! (see `draw`).
//!
//! Each run also has to satisfy the rules of any fabric: a request ends once, in order, with the status that the script
//! predicts, and the requests behind a failed one are flushed.

mod draw;
mod outcome;
mod play;
mod scene;
mod script;

use crate::{Bed, Feature};

/// Plays the script of a seed on each bed.
///
/// # Errors
/// The difference, the bed, and the script.
pub fn differ(beds: &[&dyn Bed], seed: u64) -> Result<(), String> {
    let script = draw::script(seed, beds.iter().any(|b| b.can(Feature::Passive)));
    let fail = |what: String| {
        let acts: Vec<String> = script.acts.iter().map(|a| format!("  {a:?}")).collect();
        Err(format!("seed {seed}: {what}\n{:?}\n{}", script.config, acts.join("\n")))
    };
    let mut first = None;
    for bed in beds {
        let outcome = match play::play(*bed, &script) {
            Ok(outcome) => outcome,
            Err(what) => return fail(format!("on {}: {what}", bed.name())),
        };
        match &first {
            None => first = Some((bed.name(), outcome)),
            Some((name, expected)) => {
                if let Some(what) = expected.difference(&outcome) {
                    return fail(format!("{name} against {}: {what}", bed.name()));
                }
            }
        }
    }
    Ok(())
}
