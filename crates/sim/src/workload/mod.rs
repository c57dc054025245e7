//! Random programs on random networks, checked to the last byte.
//!
//! A seed decides the number of nodes, the queue pairs between them and their settings, the posted requests, and the
//! faults of the network and the nodes meanwhile. After some time all faults end, and then every posted request has to
//! end too, as its service guarantees.

mod complete;
mod conn;
mod datagrams;
mod end;
mod host;
mod managers;
mod plan;
mod post;
mod report;
mod shared;
mod shortage;
mod world;
mod zone;

use core::cell::RefCell;
use core::time::Duration;
use std::rc::Rc;

use hca_core::{Instant, QpType};
use hca_fabric::Tap;
use softhca::Limits;

use crate::adapter::open_with;
use crate::{NearProfile, Outcome, Rng, Sim, Step, Violation};
use plan::{ConnPlan, Plan};
use world::{Checked, World};

pub use report::Report;

/// How long everything takes at most once all faults have ended, beside what timeouts allow.
const AFTERMATH: Duration = Duration::from_secs(20);

/// How long requests wait at most for a neighbour to prove its address. No timeout runs before: none of it is lost, and
/// the ring may be full until then.
const PROOF: Duration = Duration::from_secs(4);

/// How long a request whose peer is gone may wait for its error: each try up to four times the
/// timeout, once a neighbour has proved its address. `None` is for ever.
fn patience(plan: &ConnPlan, near: bool) -> Option<Duration> {
    if plan.kind != QpType::Rc {
        return Some(Duration::ZERO);
    }
    let tries = u32::from(plan.retry_cnt) + 1;
    let proof = if near { PROOF } else { Duration::ZERO };
    let tries = |t| t * 4 * tries + plan.rnr_timer.duration() * 8 + Duration::from_millis(5);
    plan.timeout.duration().map(|t| tries(t) + proof)
}

/// The services that the programs of a workload use beside SEND, RDMA, atomics and datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Memory windows, which are bound and taken back while peers work through them.
    pub windows: bool,
    /// ATOMIC WRITE and FLUSH.
    pub placement: bool,
    /// Datagrams to multicast groups, of which both ends are members.
    pub multicast: bool,
    /// Extended reliable connections (XRC).
    pub xrc: bool,
    /// Reliable datagrams (RD).
    pub rd: bool,
    /// Connections and resolutions by a connection manager on each node.
    pub cm: bool,
}

impl Default for Mix {
    /// All of them.
    fn default() -> Self {
        Self { windows: true, placement: true, multicast: true, xrc: true, rd: true, cm: true }
    }
}

/// The workload of one seed.
#[derive(Default)]
pub struct Workload {
    trace: bool,
    replay: Option<String>,
    tap: Option<Box<dyn Tap>>,
    near: bool,
    mix: Mix,
}

impl Workload {
    /// A workload with the standard mix of operations and faults.
    pub fn new() -> Self {
        Self::default()
    }
    /// Sets whether every event is printed as it happens.
    #[must_use]
    pub fn print_trace(mut self, on: bool) -> Self {
        self.trace = on;
        self
    }
    /// Sets the command for a replay, without the seed, which is appended.
    #[must_use]
    pub fn replay(mut self, command: impl Into<String>) -> Self {
        self.replay = Some(command.into());
        self
    }
    /// Shows every frame, as it is sent, to a tap.
    #[must_use]
    pub fn tap(mut self, tap: Option<Box<dyn Tap>>) -> Self {
        self.tap = tap;
        self
    }

    /// Lets nodes share machines, and reach each other there by shared memory.
    #[must_use]
    pub fn near(mut self, on: bool) -> Self {
        self.near = on;
        self
    }

    /// Sets the services that programs use; all of them unless given.
    #[must_use]
    pub fn mix(mut self, mix: Mix) -> Self {
        self.mix = mix;
        self
    }

    /// Runs the workload of a seed.
    ///
    /// # Errors
    /// A guarantee was violated.
    pub fn run(self, seed: u64) -> Result<Report, Violation> {
        // The plan has a stream of its own, so that it does not change with the simulation.
        let mut rng = Rng::new(seed ^ 0x5eed_0000_0000_0000);
        let mut plan = Plan::new(&mut rng);
        (plan.mix, plan.near) = (self.mix, self.near);
        plan.run_short(&mut Rng::new(seed ^ 0x7368_6f72_7400_0000));
        if self.mix.xrc {
            plan.use_xrc(&mut Rng::new(seed ^ 0x7872_6300_0000_0000));
        }
        if self.mix.rd {
            plan.use_rd(&mut Rng::new(seed ^ 0x7264_0000_0000_0000));
        }
        if self.mix.cm {
            plan.use_managers(&mut Rng::new(seed ^ 0x636d_0000_0000_0000));
        }
        let near = self.near.then(|| NearProfile::random(&mut Rng::new(seed ^ 0x6e65_6172_0000_0000)));
        let mut builder = Sim::builder(seed)
            .near(near.clone())
            .ipv6(plan.ipv6)
            .links(&plan.profile)
            .print_trace(self.trace);
        if let Some(mrs) = plan.max_regions {
            let limits = Limits { mrs, ..Limits::default() };
            builder = builder.opener(move |fabric, clock, seed| open_with(fabric, clock, seed, limits));
        }
        if let Some(command) = self.replay {
            builder = builder.replay(format!("{command} --seed {seed}"));
        }
        let sim = builder.build();
        sim.net().set_tap(self.tap);
        if self.trace {
            sim.say(&format!("{plan:#?}{near:#?}"));
        }
        let heal = Instant::ZERO + plan.heal;
        let world = sim.guarded(|| World::new(&sim, plan, rng)).map(|w| Rc::new(RefCell::new(w)))?;
        let outcome = drive(&sim, &world, heal);
        sim.net().set_tap(None);
        outcome?;
        let mut report = world.borrow().report();
        report.net = sim.stats();
        report.near += sim.net().near_stats();
        report.events = sim.events();
        report.trace_hash = sim.trace_hash();
        report.virtual_ns = sim.now().as_nanos();
        Ok(report)
    }
}

fn drive(sim: &Sim, world: &Rc<RefCell<World>>, heal: Instant) -> Checked<()> {
    // The world holds the simulation, which holds its actors: one of the links has to be weak.
    let actor = Rc::downgrade(world);
    sim.add_actor(move |now: Instant| -> Step {
        let Some(world) = actor.upgrade() else { return Step::Done };
        let step = world.borrow_mut().step(now);
        match step {
            Ok(step) => step,
            // No panic hook runs for what is reported anyway.
            Err(violation) => std::panic::resume_unwind(Box::new(violation)),
        }
    });
    sim.run_until(heal)?;
    world.borrow_mut().heal();
    let longest = world.borrow().longest_patience();
    let deadline = heal + AFTERMATH + longest;
    while sim.now() < deadline && !world.borrow().is_finished() {
        if sim.run_for(Duration::from_millis(2))? == Outcome::Idle {
            break;
        }
    }
    if !world.borrow().is_finished() {
        let rest = world.borrow().outstanding();
        return Err(sim.violation(format!("hang: all faults have ended, but this is left:{rest}")));
    }
    quiesce(sim, world)
}

/// Nothing is left to do: the network falls silent, and everything can be taken down.
fn quiesce(sim: &Sim, world: &Rc<RefCell<World>>) -> Checked<()> {
    if sim.run_for(AFTERMATH)? != Outcome::Idle {
        let what = sim.still_moving();
        return Err(
            sim.violation(format!("nothing is left to do, but timers run or packets travel on:{what}"))
        );
    }
    let frames = sim.net().frames_under_way();
    if frames > 0 {
        return Err(sim.violation(format!("{frames} frames are left in a quiet network")));
    }
    let mut world = world.borrow_mut();
    let world = &mut *world;
    sim.guarded(|| world.tear_down())
}

#[cfg(test)]
mod tests {
    use super::zone::Zone;
    use super::*;

    #[test]
    fn nothing_of_a_seed_is_left_when_it_ended() {
        let mut rng = Rng::new(1);
        let plan = Plan::new(&mut rng);
        let heal = Instant::ZERO + plan.heal;
        let sim = Sim::builder(1).ipv6(plan.ipv6).links(&plan.profile).build();
        let world = sim.guarded(|| World::new(&sim, plan, rng)).map(|w| Rc::new(RefCell::new(w))).unwrap();
        drive(&sim, &world, heal).unwrap();
        let gone = Rc::downgrade(&world);
        drop((world, sim));
        assert!(gone.upgrade().is_none());
    }

    #[test]
    fn random_programs_survive_neighbours_on_one_machine_and_repeat_exactly() {
        let mut sum = Report::default();
        for seed in 0..24 {
            let first = Workload::new().near(true).run(seed).unwrap();
            if seed % 8 == 0 {
                assert_eq!(
                    Workload::new().near(true).run(seed).unwrap(),
                    first,
                    "seed {seed} does not repeat"
                );
            }
            sum += first;
        }
        assert!(sum.overruns > 5 && sum.rebuilt > 5 && sum.registrations_refused > 10, "{sum:?}");
        let near = sum.near;
        assert!(near.messages > 500 && near.mapped > 10 && near.parts > 100 && near.sleeps > 100, "{near:?}");
    }

    #[test]
    fn a_request_waits_for_a_neighbour_that_proves_its_address_late() {
        // The first question for the proof is lost, and meanwhile the peer's completion queues overrun.
        let mix = Mix { multicast: false, rd: false, cm: false, ..Mix::default() };
        Workload::new().mix(mix).near(true).run(10).unwrap();
    }

    #[test]
    fn a_request_waits_for_no_memory_that_other_receive_queues_hold() {
        Workload::new().near(true).run(5_005_852).unwrap();
    }

    #[test]
    fn each_receive_queue_has_a_request_though_all_other_memory_is_taken() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut plan = Plan::new(&mut rng);
            plan.use_xrc(&mut rng);
            plan.use_rd(&mut rng);
            let sim = Sim::builder(seed).ipv6(plan.ipv6).build();
            let mut world = World::new(&sim, plan, rng).unwrap();
            for host in world.hosts.iter_mut().flatten() {
                host.recv_zone = Zone::new(0..0);
            }
            for e in 0..world.ends.len() {
                world.post_receives(Instant::ZERO, e).unwrap();
            }
            for end in world.ends.iter().filter(|end| !end.shares && end.role.is_none()) {
                assert_eq!(end.rq.len(), 1, "seed {seed}");
            }
            for host in world.hosts.iter().flatten() {
                let xrc = host.xrc.iter().flat_map(|domain| &domain.queues).map(|(_, srq)| srq);
                for srq in host.srq.iter().chain(xrc) {
                    assert_eq!(srq.ledger.len(), 1, "seed {seed}");
                }
                assert!(host.spares.is_empty(), "seed {seed}");
            }
        }
    }

    #[test]
    fn no_request_of_a_shared_queue_is_lost_as_a_queue_pair_ends() {
        // Messages break off, and their queue pairs go to error, or are destroyed as they are: with a shared queue, and
        // with one of an XRC domain.
        for seed in [26, 81, 109] {
            let report = Workload::new().run(seed).unwrap();
            assert!(report.srqs_whole > 0, "seed {seed}: {report:?}");
        }
    }

    #[test]
    fn random_programs_survive_random_networks_and_repeat_exactly() {
        let mut sum = Report::default();
        for seed in 0..12 {
            let first = Workload::new().run(seed).unwrap();
            if seed % 4 == 0 {
                assert_eq!(Workload::new().run(seed).unwrap(), first, "seed {seed} does not repeat");
            }
            sum += first;
        }
        assert!(sum.requests > 500 && sum.messages > 200 && sum.net.faults() > 100, "{sum:?}");
        assert!(sum.drains > 5 && sum.srq_limits > 5 && sum.srqs_whole > 2, "{sum:?}");
        assert!(sum.binds > 5 && sum.atomic_writes > 5 && sum.flushes > 5, "{sum:?}");
        assert!(sum.multicasts > 5 && sum.xrc_messages > 0 && sum.rd_messages > 5, "{sum:?}");
        assert!(sum.managed > 5 && sum.resolved > 2, "{sum:?}");
    }
}
