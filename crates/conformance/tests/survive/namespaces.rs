//! Processes in containers: namespaces of their own for users, processes, mounts, networks and IPC, that share one
//! folder.
//!
//! Invariants:
//! 1. Between fork and exec nothing is allocated, locked or unwound: all strings are created before, and only system
//!    calls run there.
//! 2. Every pointer that a call takes is of a C string or bytes that live across it, or null where the call allows it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that containers share, beside the places where each finds it.
pub(crate) struct Shared {
    root: PathBuf,
}

impl Shared {
    /// A folder of this user's, with these rights.
    pub(crate) fn new(name: &str, owner: u32, mode: u32) -> Self {
        let root = std::env::temp_dir().join(format!("hca-{name}"));
        let folder = |path: &Path, mode| std::fs::DirBuilder::new().mode(mode).create(path).unwrap();
        folder(&root, 0o755);
        let shared = Self { root };
        folder(&shared.folder(), 0o700);
        // Whatever the mask for new files is.
        std::fs::set_permissions(shared.folder(), std::fs::Permissions::from_mode(mode)).unwrap();
        if owner != me() {
            chown(shared.folder(), Some(owner), Some(owner)).unwrap();
        }
        shared
    }
    /// The folder itself, which containers do not see there.
    pub(crate) fn folder(&self) -> PathBuf {
        self.root.join("shared")
    }
    /// The names of what is in it.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder()).unwrap().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// The user that runs this process.
pub(crate) fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What a container has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walls {
    /// Nothing: it is none, and its folder is the one outside.
    None,
    /// Users and mounts; its processes have their numbers from outside.
    Users,
    /// Users, mounts, processes, network and IPC.
    All,
}

/// Who is in a container, and where the folder is there.
#[derive(Clone, Copy)]
pub(crate) struct Container {
    pub(crate) walls: Walls,
    /// The user outside: this one, or any if this one is root.
    pub(crate) outer: u32,
    /// What that user is called inside.
    pub(crate) inner: u32,
    /// Where the folder is found, beneath its parent.
    pub(crate) place: &'static str,
}

impl Container {
    /// The path of the folder inside.
    pub(crate) fn path(&self, shared: &Shared) -> PathBuf {
        if self.walls == Walls::None { shared.folder() } else { shared.root.join(self.place) }
    }

    /// Has a command run in a container of its own.
    pub(crate) fn around(&self, command: &mut Command, shared: &Shared) {
        if self.outer != me() {
            command.uid(self.outer).gid(self.outer);
        }
        if self.walls == Walls::None {
            return;
        }
        let at = self.path(shared);
        std::fs::create_dir_all(&at).unwrap();
        let plan = Plan {
            all: self.walls == Walls::All,
            uid_map: format!("{} {} 1", self.inner, self.outer),
            gid_map: format!("{} {} 1", self.inner, if self.outer == me() { gid() } else { self.outer }),
            folder: c_path(&shared.folder()),
            at: c_path(&at),
        };
        // SAFETY: (1) `enter` makes system calls only.
        unsafe { command.pre_exec(move || plan.enter()) };
    }
}

fn gid() -> u32 {
    rustix::process::getegid().as_raw()
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no byte of it is 0")
}

/// All that is needed between fork and exec.
struct Plan {
    all: bool,
    uid_map: String,
    gid_map: String,
    folder: CString,
    at: CString,
}

impl Plan {
    fn enter(&self) -> io::Result<()> {
        let users = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
        let others = libc::CLONE_NEWNET | libc::CLONE_NEWPID | libc::CLONE_NEWIPC;
        // SAFETY: takes numbers only. A change of user has made this process unreadable, its own files in /proc
        // included.
        unsafe {
            done(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))?;
            done(libc::unshare(if self.all { users | others } else { users }))?;
        }
        write(c"/proc/self/setgroups", b"deny")?;
        write(c"/proc/self/uid_map", self.uid_map.as_bytes())?;
        write(c"/proc/self/gid_map", self.gid_map.as_bytes())?;
        let nowhere = std::ptr::null();
        // SAFETY: (2)
        unsafe {
            let private = libc::MS_REC | libc::MS_PRIVATE;
            done(libc::mount(nowhere, c"/".as_ptr(), nowhere, private, std::ptr::null()))?;
            let (folder, at, none) = (self.folder.as_ptr(), self.at.as_ptr(), std::ptr::null());
            done(libc::mount(folder, at, nowhere, libc::MS_BIND, none))?;
            // Where it is outside, there is another one here.
            let tmpfs = c"tmpfs".as_ptr();
            done(libc::mount(tmpfs, folder, tmpfs, 0, none))?;
        }
        if !self.all {
            return Ok(());
        }
        init()?;
        // The files of its own processes, where the system lets it have them.
        // SAFETY: (2)
        unsafe { libc::mount(c"proc".as_ptr(), c"/proc".as_ptr(), c"proc".as_ptr(), 0, std::ptr::null()) };
        Ok(())
    }
}

/// Goes on as the first process of the new namespace. The one that was started stays outside, without descriptors, ends
/// as it does, and takes it along when it is killed.
fn init() -> io::Result<()> {
    // SAFETY: (1) both go on with system calls alone; (2) for `status`.
    unsafe {
        match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0)),
            child => {
                libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
                let mut status = 0;
                while libc::waitpid(child, &raw mut status, 0) < 0 {}
                libc::_exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 255 })
            }
        }
    }
}

fn write(path: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: (2)
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        let written = if fd < 0 { -1 } else { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        let result = if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        libc::close(fd);
        result
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
