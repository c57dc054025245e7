//! The layers above one device between two processes: verbs, VIs, Active Messages, global memory, Portals.
//!
//! | module | contents |
//! |---|---|
//! | [`logp`] | the parameters of LogP, of any of the layers |
//! | [`two`] | this process and the child that it starts, for layers that have no row of `hca perf` |
//! | [`via`], [`am`], [`global`] | those layers |
//! | `pair` | verbs and Portals, by [`Pair`](crate::Pair) |

pub mod am;
pub mod global;
pub mod logp;
mod pair;
pub mod two;
pub mod via;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use hca::DeviceUrl;
use hca::am::Way;

use self::logp::{LogP, measure};
use crate::child::serve_if_asked;
use crate::{Failure, Setup, interrupt};

pub use pair::Verbs;

/// A layer of `hca logp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// SENDs of reliable queue pairs.
    Verbs,
    /// VIs with Reliable Delivery.
    Via,
    /// Active Messages over verbs.
    Am,
    /// Active Messages over VIs.
    AmVia,
    /// Puts of global memory over Active Messages over verbs.
    Global,
    /// The same over VIs.
    GlobalVia,
    /// Puts of Portals, answered by puts.
    Portals,
}

impl Kind {
    /// All layers, in the order of a table.
    pub const ALL: [Self; 7] =
        [Self::Verbs, Self::Via, Self::Am, Self::AmVia, Self::Global, Self::GlobalVia, Self::Portals];

    /// Measures the parameters of LogP between this process and one that it starts. `time`: of a measurement.
    ///
    /// # Errors
    /// A device can't be opened, there is no second CPU, or the process can't be started.
    pub fn logp(self, setup: &Setup, time: Duration) -> Result<LogP, Failure> {
        match self {
            Self::Verbs => measure(&mut Verbs::start(setup, time)?),
            Self::Portals => measure(&mut pair::Portals::start(setup, time)?),
            Self::Via => measure(&mut via::start(setup, via::Spec::default(), time)?),
            Self::Am => measure(&mut am::start(setup, Way::Verbs, time)?),
            Self::AmVia => measure(&mut am::start(setup, Way::Via, time)?),
            Self::Global => measure(&mut global::start(setup, Way::Verbs, time)?),
            Self::GlobalVia => measure(&mut global::start(setup, Way::Via, time)?),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Verbs => "verbs",
            Self::Via => "VIs",
            Self::Am => "AM over verbs",
            Self::AmVia => "AM over VIs",
            Self::Global => "global over verbs",
            Self::GlobalVia => "global over VIs",
            Self::Portals => "Portals",
        })
    }
}

/// The hidden command that makes a process the far side of a layer.
pub const LAYER_COMMAND: &str = "__layer";

/// Becomes the far side of a layer if this process was started as one. To be called first in `main` of every program
/// that measures so.
pub fn layer_if_asked() {
    serve_if_asked(LAYER_COMMAND, "the far side of a layer", |args| {
        let [spec, device, cpu] = args else { return Err("three arguments are needed".into()) };
        // The near side says when it is over.
        interrupt::listen(true);
        serve(spec, &device.parse()?, cpu)
    });
}

fn serve(spec: &str, device: &DeviceUrl, cpu: &str) -> Result<(), Failure> {
    let words: Vec<&str> = spec.split(' ').collect();
    let cpu = cpu.parse().ok();
    match words[..] {
        ["via", reliability, size] => {
            let spec = via::Spec::parse(reliability, size)?;
            two::serve(device, cpu, |opened| via::End::open(opened, spec))
        }
        ["am", way] => two::serve(device, cpu, |opened| am::End::open(opened, way_of(way)?)),
        ["am", way, how] => two::serve(device, cpu, |opened| am::Computing::open(opened, way_of(way)?, how)),
        ["global", way] => two::serve(device, cpu, |opened| global::End::open(opened, way_of(way)?, 1)),
        _ => Err(format!("`{spec}` is no layer").into()),
    }
}

fn way_of(name: &str) -> Result<Way, Failure> {
    match name {
        "verbs" => Ok(Way::Verbs),
        "via" => Ok(Way::Via),
        _ => Err(format!("`{name}` is no way below Active Messages").into()),
    }
}

fn way_name(way: Way) -> &'static str {
    match way {
        Way::Verbs => "verbs",
        _ => "via",
    }
}
