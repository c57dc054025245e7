//! The switch between the Ethernet ports of a server's functions.
//!
//! Each started function has a port with the function's own address and with the addresses that its driver asks for. If
//! two functions ask for one address, the first to ask has it; an own address of a function or of the gateway always
//! stays its owner's. The switch sends a unicast frame to the port that has the address, and a multicast frame to all
//! ports; a port gets its own frames back only if its driver has asked for that. Received frames wait at a port until
//! its function looks. The wait queue has limits, and frames beyond them are dropped: a client can do no more harm to
//! others than that.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::frame::{MIN_FRAME, Mac, destination, is_group, source};
use super::gateway::Gateway;

/// Frames and bytes that wait at a port.
const MAX_FRAMES: usize = 2048;
const MAX_BYTES: usize = 1 << 20;
/// Bytes of the largest frame of a port whose driver set none, without its checksum: a tag, and 1500 bytes of payload.
const USUAL_FRAME: usize = 1518;
/// Bytes of a frame's checksum, which none carries here.
const CHECKSUM: usize = 4;

/// A port.
#[derive(Debug)]
struct Port {
    mac: Mac,
    /// Further addresses.
    more: Vec<Mac>,
    /// The groups that the port receives; all until its driver has listed some.
    groups: Option<HashSet<Mac>>,
    /// Whether the port receives all groups, regardless of the list.
    all_groups: bool,
    largest: usize,
    /// Whether its own frames come back to it: those for one, and those for several.
    loops: Loops,
    inbox: VecDeque<Frame>,
    bytes: usize,
    /// Frames that there was no room for, or that were too large.
    lost: u64,
}

/// The kinds of frames that a port gets back from itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loops {
    pub(crate) unicast: bool,
    pub(crate) groups: bool,
}

/// A frame that waits at a port.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) bytes: Arc<[u8]>,
    /// The port has sent it itself.
    pub(crate) own: bool,
}

/// The switch.
#[derive(Debug, Default)]
pub(crate) struct Switch {
    ports: BTreeMap<u16, Port>,
    /// The function of each generated address.
    own: HashMap<Mac, u16>,
    /// The function of each fixed address, whether or not the function has a port now; such a function has no other
    /// address.
    fixed: HashMap<Mac, u16>,
    /// The functions that ask for each address, in the order of their requests.
    asked: HashMap<Mac, Vec<u16>>,
    /// Functions whose links are down.
    down: HashSet<u16>,
    /// The gateway, which answers for peers outside of the server.
    pub(crate) gateway: Option<Gateway>,
    /// Frames that wait at all ports.
    pub(crate) waiting: Arc<AtomicUsize>,
}

impl Port {
    /// Takes a frame in. Returns whether there is room.
    fn take(&mut self, frame: &Arc<[u8]>, own: bool) -> bool {
        let room = frame.len() <= self.largest
            && self.inbox.len() < MAX_FRAMES
            && self.bytes + frame.len() <= MAX_BYTES;
        if room {
            self.bytes += frame.len();
            self.inbox.push_back(Frame { bytes: frame.clone(), own });
        } else {
            self.lost += 1;
        }
        room
    }
}

impl Switch {
    /// A function has a port from now on.
    pub(crate) fn open(&mut self, function: u16, mac: Mac) {
        self.close(function);
        self.own.insert(mac, function);
        let port = Port {
            mac,
            more: Vec::new(),
            groups: None,
            all_groups: false,
            largest: USUAL_FRAME,
            loops: Loops::default(),
            inbox: VecDeque::new(),
            bytes: 0,
            lost: 0,
        };
        self.ports.insert(function, port);
    }

    /// The function is to have this address, and no other one; none else may have it, ever.
    pub(crate) fn fix(&mut self, function: u16, mac: Mac) {
        self.fixed.insert(mac, function);
    }

    /// Whether a function may send a frame, by the address that the frame comes from.
    pub(crate) fn may_send(&self, function: u16, frame: &[u8]) -> bool {
        if self.fixed.is_empty() {
            return true;
        }
        let whose = self.fixed.get(&source(frame)).copied();
        let own = self.ports.get(&function).map(|port| port.mac);
        let is_fixed = own.is_some_and(|mac| self.fixed.get(&mac) == Some(&function));
        whose == Some(function) || whose.is_none() && !is_fixed
    }

    /// It has none any more, and nothing waits for it.
    pub(crate) fn close(&mut self, function: u16) {
        let Some(port) = self.ports.remove(&function) else { return };
        self.waiting.fetch_sub(port.inbox.len(), Relaxed);
        self.own.remove(&port.mac);
        port.more.iter().for_each(|mac| self.give_up(mac, function));
    }

    /// The function's link is up, or down.
    pub(crate) fn set_link(&mut self, function: u16, up: bool) {
        _ = if up { self.down.remove(&function) } else { self.down.insert(function) };
    }

    fn give_up(&mut self, mac: &Mac, function: u16) {
        if let Some(who) = self.asked.get_mut(mac) {
            who.retain(|of| *of != function);
            if who.is_empty() {
                self.asked.remove(mac);
            }
        }
    }

    /// The driver asks for these addresses, beside its own.
    pub(crate) fn ask_for(&mut self, function: u16, mut macs: Vec<Mac>) {
        macs.sort_unstable();
        macs.dedup();
        let Some(port) = self.ports.get_mut(&function) else { return };
        let old = std::mem::replace(&mut port.more, macs.clone());
        for mac in old.iter().filter(|mac| !macs.contains(mac)) {
            self.give_up(mac, function);
        }
        for mac in macs.into_iter().filter(|mac| !old.contains(mac)) {
            self.asked.entry(mac).or_default().push(function);
        }
    }

    /// The driver wants to hear these groups, and no others.
    pub(crate) fn hear_groups(&mut self, function: u16, groups: Vec<Mac>) {
        if let Some(port) = self.ports.get_mut(&function) {
            port.groups = Some(groups.into_iter().collect());
        }
    }
    /// The driver wants to hear all groups, or those that it lists.
    pub(crate) fn hear_all_groups(&mut self, function: u16, all: bool) {
        if let Some(port) = self.ports.get_mut(&function) {
            port.all_groups = all;
        }
    }

    /// These of its own frames come back to a port.
    pub(crate) fn set_loops(&mut self, function: u16, loops: Loops) {
        if let Some(port) = self.ports.get_mut(&function) {
            port.loops = loops;
        }
    }

    /// The largest frame of a port is this, with its checksum.
    pub(crate) fn set_largest(&mut self, function: u16, bytes: usize) {
        if let Some(port) = self.ports.get_mut(&function) {
            port.largest = bytes.saturating_sub(CHECKSUM).max(MIN_FRAME);
        }
    }

    /// Bytes of the largest frame that a port sends and receives.
    pub(crate) fn largest(&self, function: u16) -> usize {
        self.ports.get(&function).map_or(0, |port| port.largest)
    }

    /// Takes a frame from a function to those that it is for. `known` says whether a function here has an address.
    /// Returns how many it was for.
    pub(crate) fn send(
        &mut self,
        from: u16,
        frame: &[u8],
        known: &dyn Fn(std::net::IpAddr) -> bool,
    ) -> usize {
        if self.down.contains(&from) {
            return 0;
        }
        let to = destination(frame);
        let shared: Arc<[u8]> = frame.into();
        let answer = self.gateway.as_ref().and_then(|gateway| gateway.answer(frame, known));
        let mut count = 0;
        if is_group(&to) {
            let is_up = |number: &u16| !self.down.contains(number);
            let comes = |number: &u16, port: &Port| *number != from || port.loops.groups;
            let hears = |port: &Port| port.all_groups || port.groups.as_ref().is_none_or(|g| g.contains(&to));
            let all = self.ports.iter_mut();
            for (number, port) in all.filter(|(n, port)| is_up(n) && comes(n, port) && hears(port)) {
                self.waiting.fetch_add(port.take(&shared, *number == from).into(), Relaxed);
                count += 1;
            }
        } else {
            let taken = self.gateway.is_some_and(|gateway| gateway.mac == to) || self.fixed.contains_key(&to);
            let asked = || self.asked.get(&to).and_then(|who| who.first()).filter(|_| !taken);
            let whose = self.own.get(&to).or_else(asked).copied();
            let whose = whose.filter(|whose| !self.down.contains(whose));
            let port = whose.and_then(|whose| self.ports.get_mut(&whose));
            let own = whose == Some(from);
            if let Some(port) = port.filter(|port| !own || port.loops.unicast) {
                self.waiting.fetch_add(port.take(&shared, own).into(), Relaxed);
                count += 1;
            }
        }
        if let (Some(answer), Some(port)) = (answer, self.ports.get_mut(&from)) {
            self.waiting.fetch_add(port.take(&answer.into(), false).into(), Relaxed);
            count += 1;
        }
        count
    }

    /// Takes the oldest frame that waits for a function.
    pub(crate) fn receive(&mut self, function: u16) -> Option<Frame> {
        let port = self.ports.get_mut(&function)?;
        let frame = port.inbox.pop_front()?;
        port.bytes -= frame.bytes.len();
        self.waiting.fetch_sub(1, Relaxed);
        Some(frame)
    }

    /// Whether anything of a function is here.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn knows(&self, function: u16) -> bool {
        self.ports.contains_key(&function)
            || self.own.values().any(|of| *of == function)
            || self.asked.values().flatten().any(|of| *of == function)
    }

    /// Frames that were lost at a port.
    pub(crate) fn lost(&self, function: u16) -> u64 {
        self.ports.get(&function).map_or(0, |port| port.lost)
    }
}
