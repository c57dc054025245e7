//! Objects left by a reset, which are destroyed in small steps.
//!
//! Only queue pairs of a key's protection domain can use the key. Once all queue pairs of a function are gone, no peer
//! can reach the memory of its keys, so the server deregisters the keys in small steps: a function may have 65,536
//! keys, and the other functions of the server wait while one is reset. Protection domains are destroyed after their
//! keys.

use std::collections::VecDeque;
use std::collections::hash_map::IntoValues;

use hca_core::{Device, PdHandle};
use softhca::SoftHca;

use crate::function::Function;
use crate::guest::users::{Cells, Users};
use crate::mkey::Mkey;
use crate::objects::{KEY, Numbered, Objects, gone};

/// Keys that are given back in one look.
const A_LOOK: usize = 64;
/// Keys that are given back when one is made, so that a client that is reset again and again has no more of them.
const A_KEY: usize = 2;

/// What is still to be given back.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    keys: VecDeque<IntoValues<u32, Mkey>>,
    cells: VecDeque<Cells>,
    domains: Vec<PdHandle>,
}

impl Leaving {
    /// Keys whose queue pairs are gone.
    pub(crate) fn add_keys(&mut self, keys: Numbered<Mkey>, of: Users) {
        if !keys.is_empty() {
            self.keys.push_back(keys.into_values());
        }
        self.cells.push_back(of.into_cells());
    }

    /// A protection domain in which nothing is but such keys.
    pub(crate) fn add_domain(&mut self, domain: PdHandle) {
        self.domains.push(domain);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.cells.is_empty() && self.domains.is_empty()
    }

    /// Gives so many keys back, at most. Returns how many.
    fn give_back(&mut self, hca: &SoftHca, most: usize) -> usize {
        let mut given = 0;
        while given < most
            && let Some(keys) = self.keys.front_mut()
        {
            match keys.next() {
                Some(key) => {
                    key.destroy(hca);
                    given += 1;
                }
                None => drop(self.keys.pop_front()),
            }
        }
        for _ in given..most {
            let Some(cells) = self.cells.front_mut() else { break };
            if cells.next().is_none() {
                self.cells.pop_front();
            }
        }
        if self.keys.is_empty() {
            let some = self.domains.len().min(most);
            for domain in self.domains.drain(..some) {
                gone("protection domain", hca.dealloc_pd(domain));
            }
        }
        given
    }
}

impl Objects {
    /// Gives some of what a reset has left back, at most so many keys. Returns whether there was any.
    pub(crate) fn give_back_keys(&mut self, most: usize) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        self.freed_bytes += self.leaving.give_back(&self.hca, most) * KEY;
        true
    }

    /// A key is about to be made.
    pub(crate) fn give_back_for_a_key(&mut self) {
        self.give_back_keys(A_KEY);
    }
}

impl Function {
    /// Gives a piece of what resets have left back to the adapter. Returns whether there was any.
    pub(crate) fn give_back(&mut self) -> bool {
        self.objects.give_back_keys(A_LOOK)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.give_back_keys(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use hca_core::Device;
    use hca_prm::command::resource::{AllocPdIn, AllocPdOut};

    use super::*;
    use crate::bed::{QpShape, Server};

    /// What the adapter has of the functions' things.
    fn left(server: &Server) -> [u64; 2] {
        ["memory_regions", "protection_domains"].map(|name| {
            let counters = server.hca.counters();
            counters.iter().find(|c| c.name == name).expect("it is counted").value
        })
    }

    #[test]
    fn the_keys_of_a_reset_go_bit_by_bit_and_their_domains_behind_them() {
        let server = Server::new();
        let before = left(&server);
        let mut c = server.client(0);
        let cq = c.cq(4);
        let qp = c.qp(QpShape::default(), &cq, &cq);
        let mr = c.mr(4096);
        for _ in 0..200 {
            c.mr(4096);
        }
        assert!(left(&server)[0] > before[0] + 200);
        c.function.reset();
        // The queue pair has gone with the reset, and with it all that could reach the keys.
        assert!(c.function.objects.qps.is_empty() && qp.qpn > 0 && mr.key > 0);
        let (mut regions, mut looks) = (left(&server)[0], 0);
        assert!(regions >= before[0] + 201, "none went at once");
        while c.function.give_back() {
            let now = left(&server)[0];
            assert!(regions - now <= A_LOOK as u64, "{regions} regions, then {now}");
            (regions, looks) = (now, looks + 1);
        }
        assert!(looks > 3, "{looks} looks");
        assert_eq!(left(&server), before);
    }

    #[test]
    fn who_is_reset_again_and_again_has_no_more_keys_than_twice_as_many() {
        let server = Server::new();
        let mut c = server.client(0);
        let before = left(&server)[0];
        for _ in 0..4 {
            for _ in 0..100 {
                c.mr(4096);
                let now = left(&server)[0] - before;
                assert!(now <= 200, "{now} regions");
            }
            c.shut();
            c.boot();
            c.pd = c.command(&AllocPdIn::new()).unwrap().get(AllocPdOut::PD);
        }
    }
}
