//! The launcher's side of PMI-1 as a state machine, without any I/O.
//!
//! A seat is a process's place, by its rank. A line from a seat yields answers, to it and to others. A barrier
//! completes when all ranks wait. Once a process has left or ended, it fails at once for all ranks.

use std::collections::HashMap;
use std::fmt::Write;

use thiserror::Error;

use crate::error::LineFault;
use crate::line::{Line, message, word};

/// Bytes of the longest key, its zero byte in C counted.
const KEY_MAX: usize = 64;
/// Bytes of the longest value.
const VALUE_MAX: usize = 1024;
/// Bytes of the longest name of a job's values.
pub(crate) const NAME_MAX: usize = 256;
/// Values that a process may put: the longest card has 137 parts here.
const VALUES_PER_SEAT: u32 = 1024;
/// Bytes that are kept of a line that is no PMI-1.
const SHOWN_BYTES: usize = 80;

/// The effects of a line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// What to send, and to which rank.
    pub(crate) answers: Vec<(u32, String)>,
    /// The connection ends behind the answers: its process left, or does not speak PMI-1.
    pub(crate) close: bool,
    /// A process asks to end all.
    pub(crate) abort: Option<Abort>,
    /// The process does not speak PMI-1.
    pub(crate) not_pmi: Option<NotPmi>,
}

/// The report of a process that does not speak PMI-1. The server has closed its connection, and no barrier can complete
/// any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotPmi {
    /// The process's rank.
    pub rank: u32,
    /// The beginning of the process's line.
    pub line: Box<str>,
    /// The fault in the line.
    pub fault: PmiFault,
}

/// The fault in a process's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PmiFault {
    /// The line is not a line of pairs.
    #[error(transparent)]
    Line(LineFault),
    /// The line is not a command of PMI-1.
    #[error("PMI-1 has no such request")]
    Unknown,
    /// The sender waits for the answer to an earlier question, at a barrier.
    #[error("the sender waits at a barrier, and may send no request before the barrier completes")]
    Waiting,
}

/// The request of a process to end the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The process's rank.
    pub rank: u32,
    /// The requested exit code.
    pub code: i32,
    /// The message of the process.
    pub message: Box<str>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Seat {
    /// No process came yet.
    #[default]
    Empty,
    /// Its process is in the job.
    Taken,
    /// The process waits at the barrier.
    Waiting,
    /// The process left or ended.
    Left,
}

/// The machine of a job.
#[derive(Debug)]
pub(crate) struct JobState {
    name: Box<str>,
    seats: Vec<Seat>,
    /// How many values each has put.
    put: Vec<u32>,
    values: HashMap<Box<str>, Box<str>>,
    waiting: u32,
    /// The rank that left first: no barrier completes any more.
    left: Option<u32>,
    abort: Option<Abort>,
}

/// The reason why a process is refused its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRank {
    /// It does not greet.
    Stranger,
    /// It has another number of processes.
    Size,
    /// It belongs to another job.
    Job,
    /// Its rank is no rank of the job.
    Rank,
    /// Its rank is taken, or was.
    Taken,
}

impl JobState {
    /// A job of `size` processes.
    pub(crate) fn new(size: u32, name: &str) -> Self {
        let mut values = HashMap::new();
        // MPICH asks for the placement: all processes are on one machine.
        values.insert("PMI_process_mapping".into(), format!("(vector,(0,1,{size}))").into());
        let seats = vec![Seat::Empty; size as usize];
        let name = word(name).chars().take(NAME_MAX - 1).collect::<String>().into();
        Self { name, put: vec![0; size as usize], seats, values, waiting: 0, left: None, abort: None }
    }

    /// How many processes the job has.
    pub(crate) fn size(&self) -> u32 {
        self.seats.len() as u32
    }

    /// How many processes have not left; those that are still to come are counted.
    pub(crate) fn present(&self) -> u32 {
        self.seats.iter().filter(|s| **s != Seat::Left).count() as u32
    }

    /// Whether this process has left.
    pub(crate) fn has_left(&self, rank: u32) -> bool {
        self.seats.get(rank as usize) == Some(&Seat::Left)
    }

    /// Gives a seat to its process.
    pub(crate) fn attach(&mut self, rank: u32) -> Result<(), NoRank> {
        match self.seats.get_mut(rank as usize) {
            None => Err(NoRank::Rank),
            Some(seat) if *seat != Seat::Empty => Err(NoRank::Taken),
            Some(seat) => {
                *seat = Seat::Taken;
                Ok(())
            }
        }
    }

    /// Admits a process that greets over TCP with the name `job`; or returns the answer before closing.
    pub(crate) fn greet(&mut self, line: &[u8], job: &str) -> Result<(u32, String), String> {
        let rank = Line::parse(line).ok().ok_or(NoRank::Stranger).and_then(|l| self.greeted(l, job));
        let size = self.size();
        match rank {
            Ok(rank) => {
                let sets = format!("cmd=set size={size}\ncmd=set rank={rank}\ncmd=set debug=0\n");
                Ok((rank, format!("cmd=initack rc=0 job={job}\n{sets}")))
            }
            Err(why) => {
                let (reason, msg) = match why {
                    NoRank::Stranger => ("stranger", "this_is_PMI-1_and_wants_cmd=initack"),
                    NoRank::Size => ("size", "the_job_has_another_size"),
                    NoRank::Job => ("job", "another_job_is_served_here"),
                    NoRank::Rank => ("rank", "the_job_has_no_such_rank"),
                    NoRank::Taken => ("taken", "the_rank_was_taken_before"),
                };
                Err(format!("cmd=initack rc=1 size={size} reason={reason} msg={msg}\n"))
            }
        }
    }

    fn greeted(&mut self, line: Line<'_>, job: &str) -> Result<u32, NoRank> {
        let line = line.expect("initack").map_err(|_| NoRank::Stranger)?;
        if line.value("job") != Some(job) {
            return Err(NoRank::Job);
        }
        if line.rank("size") != Ok(self.size()) {
            return Err(NoRank::Size);
        }
        let rank = line.rank("pmiid").map_err(|_| NoRank::Rank)?;
        self.attach(rank).map(|()| rank)
    }

    /// Takes a line, without its end, from a seat that is taken.
    pub(crate) fn line(&mut self, rank: u32, line: &[u8]) -> Outcome {
        let mut out = Outcome::default();
        let said = line;
        let line = match Line::parse(said) {
            Ok(line) => line,
            Err(fault) => return self.not_pmi(rank, said, PmiFault::Line(fault)),
        };
        let Some(cmd) = line.cmd() else {
            return self.not_pmi(rank, said, PmiFault::Line(LineFault::Lacks { key: "cmd" }));
        };
        match self.seats.get(rank as usize) {
            Some(Seat::Taken) => {}
            // Another thread of it waits.
            Some(Seat::Waiting) if cmd == "abort" => {}
            _ => return self.not_pmi(rank, said, PmiFault::Waiting),
        }
        let answer = match cmd {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n".to_owned(),
            "get_maxes" => {
                format!("cmd=maxes kvsname_max={NAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX}\n")
            }
            "get_appnum" => "cmd=appnum appnum=0\n".to_owned(),
            "get_universe_size" => format!("cmd=universe_size size={}\n", self.size()),
            "get_my_kvsname" => format!("cmd=my_kvsname kvsname={}\n", self.name),
            "put" => format!("cmd=put_result {}\n", self.aborted().unwrap_or_else(|| self.put(rank, line))),
            "get" => format!("cmd=get_result {}\n", self.aborted().unwrap_or_else(|| self.get(line))),
            "barrier_in" => return self.barrier(rank, out),
            "finalize" => {
                out.answers.push((rank, "cmd=finalize_ack rc=0\n".to_owned()));
                out.close = true;
                return self.leave(rank, out);
            }
            "abort" => {
                let code = line.number("exitcode").ok().and_then(|c| i32::try_from(c).ok()).unwrap_or(1);
                let words = line.rest("message").map(message).filter(|words| !words.is_empty());
                let message = words.unwrap_or_else(|| "no reason given".into());
                return self.end(Abort { rank, code, message }, out);
            }
            // What MPI's dynamic processes ask for.
            other @ ("publish_name" | "unpublish_name" | "lookup_name") => {
                let stem = other.split('_').next().unwrap_or(other);
                format!("cmd={stem}_result rc=-1 info=fail msg=this_launcher_keeps_no_names\n")
            }
            _ => return self.not_pmi(rank, said, PmiFault::Unknown),
        };
        out.answers.push((rank, answer));
        out
    }

    /// A process has left, or has ended.
    pub(crate) fn ended(&mut self, rank: u32) -> Outcome {
        self.leave(rank, Outcome::default())
    }

    /// Handles a line that is not PMI-1. Lines of a process that has left are ignored.
    pub(crate) fn not_pmi(&mut self, rank: u32, said: &[u8], fault: PmiFault) -> Outcome {
        let mut out = Outcome { close: true, ..Outcome::default() };
        if !self.has_left(rank) {
            let line = String::from_utf8_lossy(&said[..said.len().min(SHOWN_BYTES)]).into();
            out.not_pmi = Some(NotPmi { rank, line, fault });
        }
        self.leave(rank, out)
    }

    fn put(&mut self, rank: u32, line: Line<'_>) -> String {
        let (Some(name), Some(key), Some(value)) =
            (line.value("kvsname"), line.value("key"), line.rest("value"))
        else {
            return "rc=-1 msg=kvsname_key_and_value_are_needed".to_owned();
        };
        let put = &mut self.put[rank as usize];
        if *name != *self.name {
            "rc=-1 msg=no_such_kvsname".to_owned()
        } else if key.is_empty() || key.len() >= KEY_MAX || value.len() >= VALUE_MAX {
            "rc=-1 msg=key_or_value_is_too_long".to_owned()
        } else if *put == VALUES_PER_SEAT {
            "rc=-1 msg=too_many_values".to_owned()
        } else {
            *put += 1;
            self.values.insert(key.into(), value.into());
            "rc=0 msg=success".to_owned()
        }
    }

    fn get(&self, line: Line<'_>) -> String {
        match line.value("key").and_then(|k| self.values.get(k)) {
            _ if line.value("kvsname") != Some(&*self.name) => {
                "rc=-1 msg=no_such_kvsname value=unknown".to_owned()
            }
            Some(value) => format!("rc=0 msg=success value={value}"),
            None => "rc=-1 msg=key_not_found value=unknown".to_owned(),
        }
    }

    fn barrier(&mut self, rank: u32, mut out: Outcome) -> Outcome {
        self.seats[rank as usize] = Seat::Waiting;
        self.waiting += 1;
        if self.waiting == self.size() || self.left.is_some() || self.abort.is_some() {
            self.release(&mut out);
        }
        out
    }

    /// Completes or fails the barrier for all ranks that wait.
    fn release(&mut self, out: &mut Outcome) {
        let mut answer = "cmd=barrier_out ".to_owned();
        match (self.aborted(), self.left) {
            (Some(aborted), _) => answer += &aborted,
            (None, Some(rank)) => {
                write!(answer, "rc=1 left={rank} msg=rank_{rank}_has_ended_or_left")
                    .expect("a string takes all");
            }
            (None, None) => answer += "rc=0",
        }
        answer.push('\n');
        for (rank, seat) in self.seats.iter_mut().enumerate().filter(|(_, s)| **s == Seat::Waiting) {
            *seat = Seat::Taken;
            out.answers.push((rank as u32, answer.clone()));
        }
        self.waiting = 0;
    }

    fn leave(&mut self, rank: u32, mut out: Outcome) -> Outcome {
        let Some(seat) = self.seats.get_mut(rank as usize) else { return out };
        match std::mem::replace(seat, Seat::Left) {
            Seat::Left => return out,
            Seat::Waiting => self.waiting -= 1,
            Seat::Empty | Seat::Taken => {}
        }
        self.left.get_or_insert(rank);
        self.release(&mut out);
        out
    }

    fn end(&mut self, abort: Abort, mut out: Outcome) -> Outcome {
        if self.abort.is_none() {
            self.abort = Some(abort.clone());
            out.abort = Some(abort);
            self.release(&mut out);
        }
        out
    }

    /// The answer to all requests after the job was aborted.
    fn aborted(&self) -> Option<String> {
        let abort = self.abort.as_ref()?;
        Some(format!("rc=1 aborted={} exitcode={} msg={}", abort.rank, abort.code, word(&abort.message)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A job in which all have a seat.
    fn job_state(size: u32) -> JobState {
        let mut job_state = JobState::new(size, "job");
        (0..size).for_each(|r| job_state.attach(r).unwrap());
        job_state
    }

    fn answers(out: Outcome) -> Vec<(u32, String)> {
        assert!(!out.close && out.abort.is_none() && out.not_pmi.is_none(), "{out:?}");
        out.answers
    }

    fn answer(job_state: &mut JobState, rank: u32, line: &str) -> String {
        let mut all = answers(job_state.line(rank, line.as_bytes()));
        assert_eq!((all.len(), all[0].0), (1, rank), "{line}: {all:?}");
        all.remove(0).1
    }

    #[test]
    fn a_value_is_seen_by_all_and_an_absent_one_refused() {
        let mut d = job_state(2);
        assert_eq!(
            answer(&mut d, 0, "cmd=put kvsname=job key=a value=x y"),
            "cmd=put_result rc=0 msg=success\n"
        );
        assert_eq!(
            answer(&mut d, 1, "cmd=get kvsname=job key=a"),
            "cmd=get_result rc=0 msg=success value=x y\n"
        );
        for (line, part) in [
            ("cmd=get kvsname=job key=b", "key_not_found"),
            ("cmd=get kvsname=other key=a", "no_such_kvsname"),
            ("cmd=put kvsname=other key=a value=x", "no_such_kvsname"),
            ("cmd=put key=a value=x", "needed"),
            (&format!("cmd=put kvsname=job key={} value=x", "k".repeat(64)), "too_long"),
            (&format!("cmd=put kvsname=job key=a value={}", "v".repeat(1024)), "too_long"),
        ] {
            let said = answer(&mut d, 1, line);
            assert!(said.contains("rc=-1") && said.contains(part), "{line}: {said}");
        }
    }

    #[test]
    fn a_process_puts_a_limited_number_of_values() {
        let mut d = job_state(1);
        for i in 0..VALUES_PER_SEAT {
            let said = answer(&mut d, 0, &format!("cmd=put kvsname=job key={i} value=x"));
            assert!(said.contains("rc=0"), "{i}: {said}");
        }
        assert!(answer(&mut d, 0, "cmd=put kvsname=job key=a value=x").contains("too_many"));
    }

    #[test]
    fn a_barrier_lets_all_go_when_the_last_has_come() {
        let mut d = job_state(3);
        for _ in 0..2 {
            assert_eq!(answers(d.line(2, b"cmd=barrier_in")), []);
            assert_eq!(answers(d.line(0, b"cmd=barrier_in")), []);
            let out: Vec<_> = (0..3).map(|r| (r, "cmd=barrier_out rc=0\n".to_owned())).collect();
            assert_eq!(answers(d.line(1, b"cmd=barrier_in")), out);
        }
    }

    #[test]
    fn a_barrier_fails_for_all_when_one_leaves_or_ends() {
        for how in [&b"cmd=finalize"[..], b"GET / HTTP/1.1", b""] {
            let mut d = job_state(3);
            assert_eq!(answers(d.line(2, b"cmd=barrier_in")), []);
            let out = if how.is_empty() { d.ended(1) } else { d.line(1, how) };
            assert!(out.answers.iter().any(|(r, a)| *r == 2 && a.contains("rc=1 left=1")), "{out:?}");
            let late = answer(&mut d, 0, "cmd=barrier_in");
            assert!(late.contains("rc=1 left=1"), "{late}");
            assert!(d.line(1, b"cmd=barrier_in").close, "who has left is not heard");
        }
    }

    #[test]
    fn who_does_not_speak_pmi_1_is_told_of_once_with_the_beginning_of_what_it_said() {
        let long = [b'x'; 300];
        let waiting: &[u8] = b"cmd=get kvsname=job key=a";
        for (line, fault) in [
            (&b"GET / HTTP/1.1"[..], PmiFault::Line(LineFault::NotPairs)),
            (b"\xff", PmiFault::Line(LineFault::NotText)),
            (b"rc=0", PmiFault::Line(LineFault::Lacks { key: "cmd" })),
            (b"cmd=dance", PmiFault::Unknown),
            (&long, PmiFault::Line(LineFault::NotPairs)),
            (waiting, PmiFault::Waiting),
        ] {
            let mut d = job_state(2);
            if line == waiting {
                assert_eq!(answers(d.line(1, b"cmd=barrier_in")), []);
            }
            let told = d.line(1, line).not_pmi.unwrap();
            let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES)]);
            assert_eq!((told.rank, &*told.line, told.fault), (1, &*shown, fault));
            assert_eq!(d.line(1, line).not_pmi, None, "it is out");
        }
        let mut d = job_state(2);
        assert!(d.line(1, b"cmd=finalize").not_pmi.is_none() && d.ended(0).not_pmi.is_none());
    }

    #[test]
    fn an_abort_is_heard_by_all_who_wait_and_who_ask() {
        let mut d = job_state(3);
        assert_eq!(answers(d.line(2, b"cmd=barrier_in")), []);
        let out = d.line(1, b"cmd=abort exitcode=7 message=out_of_rope");
        assert_eq!(out.abort, Some(Abort { rank: 1, code: 7, message: "out of rope".into() }));
        let told = "rc=1 aborted=1 exitcode=7 msg=out_of_rope\n";
        assert_eq!(out.answers, [(2, format!("cmd=barrier_out {told}"))]);
        assert_eq!(answer(&mut d, 0, "cmd=get kvsname=job key=a"), format!("cmd=get_result {told}"));
        assert_eq!(d.line(0, b"cmd=abort exitcode=9").abort, None, "the first one counts");
        let mut waits = job_state(2);
        assert_eq!(answers(waits.line(1, b"cmd=barrier_in")), []);
        assert_eq!(waits.line(1, b"cmd=abort exitcode=4").abort.unwrap().code, 4, "by another thread of it");
        let Abort { message, .. } = job_state(1).line(0, b"cmd=abort exitcode=9").abort.unwrap();
        assert_eq!(&*message, "no reason given");
    }

    #[test]
    fn who_greets_gets_the_seat_that_is_his_and_nobody_else_does() {
        let mut d = JobState::new(2, "job");
        let mut refused = |line: &str| d.greet(line.as_bytes(), "lab").unwrap_err();
        for (line, reason) in [
            ("GET / HTTP/1.1", "stranger"),
            ("cmd=init", "stranger"),
            ("cmd=initack pmiid=0 size=2", "job"),
            ("cmd=initack pmiid=0 size=2 job=other", "job"),
            ("cmd=initack pmiid=0 size=3 job=lab", "size"),
            ("cmd=initack pmiid=2 size=2 job=lab", "rank"),
            ("cmd=initack pmiid=-1 size=2 job=lab", "rank"),
        ] {
            let said = refused(line);
            assert!(said.contains(&format!("rc=1 size=2 reason={reason} ")), "{line}: {said}");
        }
        let (rank, said) = d.greet(b"cmd=initack pmiid=1 size=2 job=lab", "lab").unwrap();
        assert_eq!(rank, 1);
        assert_eq!(said, "cmd=initack rc=0 job=lab\ncmd=set size=2\ncmd=set rank=1\ncmd=set debug=0\n");
        assert!(d.greet(b"cmd=initack pmiid=1 size=2 job=lab", "lab").unwrap_err().contains("taken"));
        let _ = d.ended(1);
        assert!(
            d.greet(b"cmd=initack pmiid=1 size=2 job=lab", "lab").unwrap_err().contains("taken"),
            "nor again"
        );
    }

    proptest! {
        /// Whatever is said, nobody who waits is forgotten: each question has one answer, or its asker is hung up on.
        #[test]
        fn every_question_is_answered_once_or_its_asker_hung_up_on(
            said in proptest::collection::vec((0..3u32, prop_oneof![
                4 => Just("cmd=barrier_in".to_owned()),
                1 => Just("cmd=finalize".to_owned()),
                1 => Just("cmd=abort exitcode=3".to_owned()),
                2 => "cmd=(put|get|init|get_maxes|spawn|lookup_name) (kvsname=job|key=a|value=b|=| ){0,4}",
                1 => "[a-z= ]{0,12}",
                1 => Just("gone".to_owned()),
            ]), 0..60)
        ) {
            let mut d = job_state(3);
            let mut owed = [0i32; 3];
            let mut here = [true; 3];
            for (rank, line) in said {
                let at = rank as usize;
                if !here[at] {
                    continue;
                }
                let out = if line == "gone" { d.ended(rank) } else {
                    owed[at] += i32::from(!line.starts_with("cmd=abort"));
                    d.line(rank, line.as_bytes())
                };
                for (to, text) in &out.answers {
                    prop_assert!(here[*to as usize] && text.ends_with('\n') && text.matches('\n').count() == 1);
                    owed[*to as usize] -= 1;
                }
                if out.close || line == "gone" {
                    here[at] = false;
                    owed[at] = 0;
                }
                let waiting = d.seats.iter().filter(|s| **s == Seat::Waiting).count() as i32;
                prop_assert_eq!(owed.iter().sum::<i32>(), waiting, "{:?}", d);
                prop_assert!(waiting == 0 || here == [true; 3], "nobody waits for who has gone");
            }
        }
    }
}
