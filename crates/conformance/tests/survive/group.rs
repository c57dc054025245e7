//! A control group with a memory limit for its processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hca_conformance::Ran;
use rustix::process::{Pid, Signal, kill_process};

use test_support::roles::Helper;

/// When processes that were killed are despaired of.
const PATIENCE: Duration = Duration::from_secs(20);

/// Beneath the group of this process, or the nearest one above that lets groups have limits; it goes with this value.
pub(crate) struct Group {
    at: PathBuf,
    /// Of the unified hierarchy, version 2.
    unified: bool,
}

impl Group {
    /// # Errors
    /// The reason why there can be none, for whoever skips a test.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let (above, unified) = own_group()?;
        let at = above.join(format!("hca-{name}"));
        fs::create_dir(&at).map_err(|e| format!("needs root, for {}: {e}", at.display()))?;
        let group = Self { at, unified };
        // What is to be short is not to be found on a disk.
        let (file, none) = if unified { ("memory.swap.max", "0") } else { ("memory.swappiness", "0") };
        match group.write(file, none) {
            // A system that swaps nothing.
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("{file}: {e}")),
            _ => Ok(group),
        }
    }

    /// Takes a process in, which has waited for that.
    pub(crate) fn take(&self, child: &mut Helper) {
        assert_eq!(child.line(), "waits");
        self.write("cgroup.procs", &child.child.id().to_string()).unwrap();
        child.tell("go on");
    }
    /// Bytes that its processes have been given and keep.
    pub(crate) fn usage(&self) -> u64 {
        let file = if self.unified { "memory.current" } else { "memory.usage_in_bytes" };
        self.read(file).expect("every group counts them").trim().parse().unwrap()
    }
    /// The most that they ever had; what they have, where the system does not know.
    pub(crate) fn peak(&self) -> u64 {
        let file = if self.unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        self.read(file).ok().and_then(|s| s.trim().parse().ok()).unwrap_or_else(|| self.usage())
    }
    pub(crate) fn limit(&self, bytes: u64) {
        let file = if self.unified { "memory.max" } else { "memory.limit_in_bytes" };
        self.write(file, &bytes.to_string()).unwrap();
    }
    /// No limit any more.
    pub(crate) fn lift(&self) {
        let (file, none) = if self.unified { ("memory.max", "max") } else { ("memory.limit_in_bytes", "-1") };
        self.write(file, none).unwrap();
    }
    /// Has the system kill nobody for want of memory: calls fail, and who touches new pages waits.
    ///
    /// # Errors
    /// The reason why it can't.
    pub(crate) fn spare(&self) -> Result<(), String> {
        if self.unified {
            return Err("needs a control group of version 1: version 2 kills where memory is wanting".into());
        }
        self.write("memory.oom_control", "1").map_err(|e| format!("memory.oom_control: {e}"))
    }
    /// Whether somebody waits for memory.
    pub(crate) fn is_wanting(&self) -> bool {
        self.number("memory.oom_control", "under_oom") == Some(1)
    }
    /// How many processes the system has killed for want of memory, if it counts them.
    pub(crate) fn killed(&self) -> Option<u64> {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        self.number(file, "oom_kill")
    }
    /// Removes it, once its processes are gone.
    pub(crate) fn remove(self) {
        let mut ran = Ran::new();
        while let Err(e) = fs::remove_dir(&self.at) {
            assert!(ran.tick() < PATIENCE, "{}: {e}", self.at.display());
            std::thread::yield_now();
        }
    }

    fn number(&self, file: &str, name: &str) -> Option<u64> {
        let text = self.read(file).ok()?;
        let mut lines = text.lines().filter_map(|l| l.split_once(' '));
        lines.find(|l| l.0 == name)?.1.trim().parse().ok()
    }
    fn read(&self, file: &str) -> io::Result<String> {
        fs::read_to_string(self.at.join(file))
    }
    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.at.join(file), text)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Of a test that failed, mostly: only processes that it has started are here.
        let mut ran = Ran::new();
        while fs::remove_dir(&self.at).is_err() && self.at.exists() && ran.tick() < PATIENCE {
            let left = self.read("cgroup.procs").unwrap_or_default();
            for pid in left.lines().filter_map(|l| l.parse().ok()).filter_map(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::yield_now();
        }
    }
}

/// Where groups with limits on memory can be made, and whether that is the unified hierarchy.
fn own_group() -> Result<(PathBuf, bool), String> {
    let none = || "needs control groups for memory".to_owned();
    let read = |file: &str| fs::read_to_string(file).map_err(|e| format!("{file}: {e}"));
    let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
    let line = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|l| {
            let mut fields = l.splitn(3, ':').skip(1);
            (wanted(fields.next()?)).then(|| fields.next()).flatten()
        })
    };
    let has_memory = |list: &str| list.split(',').any(|c| c == "memory");
    let (group, unified) = match line(&has_memory) {
        Some(group) => (group, false),
        None => (line(&str::is_empty).ok_or_else(none)?, true),
    };
    let mounted = mounts.lines().find_map(|l| {
        let (before, behind) = l.split_once(" - ")?;
        let kind = behind.split(' ').next()?;
        let fits = if unified {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && has_memory(behind.rsplit(' ').next()?)
        };
        let mut fields = before.split(' ').skip(3);
        fits.then(|| Some((fields.next()?, fields.next()?))).flatten()
    });
    let (root, at) = mounted.ok_or_else(none)?;
    let within = group.strip_prefix(root.trim_end_matches('/')).unwrap_or(group);
    let own = Path::new(at).join(within.trim_start_matches('/'));
    if !unified {
        return Ok((own, false));
    }
    // A group that has processes, as this one's, has no children with limits.
    let gives = |group: &&Path| {
        let gives = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
        group.starts_with(at) && gives.split_whitespace().any(|c| c == "memory")
    };
    own.ancestors().find(gives).map(|group| (group.to_owned(), true)).ok_or_else(none)
}
