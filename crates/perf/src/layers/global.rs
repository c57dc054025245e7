//! Global memory of two processes.

use std::time::Duration;

use hca::Opened;
use hca::am::{EndpointName, Way};
use hca::global::{GlobalPtr, Joining, Process, Spread};

use super::two::{BULK, Near, ROUNDS, Two, go_on};
use super::{LAYER_COMMAND, way_name};
use crate::batches::{median_ns, per_second};
use crate::{Failure, Setup};

/// Bytes of global memory of a process: the words, and a block.
const BYTES: usize = BULK + 8192;
/// Requests of an endpoint that may be without an answer.
const WINDOW: usize = 16;

/// An access to an element of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read by RDMA, and a wait for it.
    Read,
    /// A write by RDMA, and a wait for it.
    Write,
    /// Gets in a row, and one wait.
    Get,
    /// Puts in a row, and one wait.
    Put,
    /// Stores in a row, which nobody answers.
    Store,
}

impl Access {
    /// All of them, in the order of a table.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Get, Self::Put, Self::Store];
}

/// A process of two.
pub struct End {
    rank: usize,
    joining: Option<Joining>,
    joined: Option<Joined>,
    _device: Opened,
}

/// The process with what it accesses.
struct Joined {
    process: Process,
    /// The other process's element.
    word: GlobalPtr<u64>,
    block: Spread<u8>,
    /// The number of the last burst that is over.
    over: Spread<u64>,
    burst: u64,
}

/// Global memory of this process and another. `time`: of a measurement.
///
/// # Errors
/// A device can't be opened, or the process not be started.
pub fn start(setup: &Setup, way: Way, time: Duration) -> Result<Two<End>, Failure> {
    Two::start(setup, LAYER_COMMAND, &format!("global {}", way_name(way)), time, |opened| {
        End::open(opened, way, 0)
    })
}

impl End {
    pub(super) fn open(device: Opened, way: Way, rank: usize) -> Result<Self, Failure> {
        let joining = Some(Joining::open(device.context(), way, BYTES, 2)?);
        Ok(Self { rank, joining, joined: None, _device: device })
    }
    /// Reads the other process's element by a get, which the other process answers, and a sync.
    ///
    /// # Errors
    /// The other process is gone.
    pub fn get(&mut self) -> Result<u64, Failure> {
        let Joined { process, word, .. } = self.joined();
        let got = process.get(*word)?;
        process.sync()?;
        Ok(process.take(got)?)
    }
    #[inline]
    fn joined(&mut self) -> &mut Joined {
        self.joined.as_mut().expect("it has met the other one")
    }
}

impl Near for End {
    fn window(&self) -> usize {
        WINDOW
    }
    #[inline]
    fn ask(&mut self) -> Result<(), Failure> {
        let Joined { process, word, .. } = self.joined();
        Ok(process.put(*word, 7)?)
    }
    #[inline]
    fn poll(&mut self) -> Result<(), Failure> {
        self.joined().process.poll()?;
        Ok(())
    }
    #[inline]
    fn settle(&mut self) -> Result<(), Failure> {
        Ok(self.joined().process.sync()?)
    }
    fn bulk_ns(&mut self, size: usize, time: Duration) -> Result<Option<f64>, Failure> {
        let Joined { process, block, .. } = self.joined();
        let data = vec![7; size];
        let rate = per_second(time, 1, || {
            go_on()?;
            Ok::<_, Failure>(process.put_bulk(block, 1, 0, &data)?)
        })?;
        process.sync()?;
        Ok(Some(1e9 / rate))
    }
}

impl super::two::End for End {
    fn introduction(&self) -> Result<String, Failure> {
        Ok(self.joining.as_ref().ok_or("it has met the other one before")?.name()?.to_string())
    }
    fn meet(&mut self, other: &str, _: bool) -> Result<(), Failure> {
        let joining = self.joining.take().ok_or("it has met the other one before")?;
        let mut names: [EndpointName; 2] = [joining.name()?, other.parse()?];
        names.rotate_left(self.rank);
        let mut process = joining.join(self.rank, &names)?;
        let (words, over) = (process.spread(1)?, process.spread(1)?);
        let block = process.spread(BULK)?;
        let word = words.at(1 - self.rank, 0)?;
        self.joined = Some(Joined { process, word, block, over, burst: 0 });
        Ok(())
    }
    fn stop(&mut self) -> Result<(), Failure> {
        let Joined { process, over, burst, .. } = self.joined();
        *burst += 1;
        Ok(process.write(over.at(1, 0)?, *burst)?)
    }
    fn serve(&mut self) -> Result<bool, Failure> {
        let Joined { process, over, burst, .. } = self.joined();
        if process.poll()? > 0 || process.load(over, 0, 1)?[0] == *burst {
            return Ok(false);
        }
        *burst += 1;
        // The answer to the last write leaves before this side blocks.
        process.poll()?;
        Ok(true)
    }
}

impl Two<End> {
    /// The time of an access, in ns: the median of batches.
    ///
    /// # Errors
    /// A device, or the far side, can't go on.
    pub fn access_ns(&mut self, access: Access) -> Result<f64, Failure> {
        let time = self.time;
        self.during(|end| {
            let Joined { process, word, .. } = end.joined();
            let mut gets = Vec::new();
            median_ns(time, ROUNDS, || {
                for _ in 0..ROUNDS {
                    match access {
                        Access::Read => drop(process.read(*word)?),
                        Access::Write => process.write(*word, 7)?,
                        Access::Get => gets.push(process.get(*word)?),
                        Access::Put => process.put(*word, 7)?,
                        Access::Store => process.store(*word, 7)?,
                    }
                }
                if access != Access::Store {
                    process.sync()?;
                }
                gets.drain(..).try_for_each(|got| process.take(got).map(drop))?;
                Ok(())
            })
        })
    }
    /// Bytes a second of puts of a block.
    ///
    /// # Errors
    /// As [`access_ns`](Self::access_ns).
    pub fn put_bytes_per_s(&mut self, size: usize) -> Result<f64, Failure> {
        let time = self.time;
        let ns = self.during(|end| end.bulk_ns(size, time))?;
        Ok(ns.map_or(0.0, |ns| size as f64 / ns * 1e9))
    }
    /// Bytes a second of puts of a part of global memory, without a copy.
    ///
    /// # Errors
    /// As [`access_ns`](Self::access_ns).
    pub fn put_part_bytes_per_s(&mut self, size: usize) -> Result<f64, Failure> {
        let time = self.time;
        self.during(|end| {
            let Joined { process, block, .. } = end.joined();
            let rate = per_second(time, size, || process.put_part(block, 1, 0, block, 0, size))?;
            process.sync()?;
            Ok(rate)
        })
    }
}
