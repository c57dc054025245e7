//! Import: further contexts and objects of those that the process has, by a descriptor and by handles.
//!
//! A context has a command descriptor, of a file that is there for this alone. A context that is imported by a duplicate
//! of the descriptor has the same file, and the file's objects are found by their handles. An import of another process
//! is refused: the objects are in the memory of the process that made them.
//!
//! With the last of a file's contexts its queue pairs, memory windows and regions end, as they do in the kernel with the
//! descriptor: no peer reaches what the program has left.

use core::ffi::c_int;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use hca::hca_core::{MwHandle, PdHandle};
use hca_process::{PerProcess, memory_file};
use rustix::fs::{MemfdFlags, Stat, fstat};

use crate::abi::IbvContext;
use crate::context::Context;
use crate::device::{Adapter, NamedDevice};
use crate::dm::{Dm, Memory};
use crate::entry::{Errno, INVALID, In, counted, exports, lock, owned, pointer, stat};
use crate::memory::{Mr, Pd, Region};
use crate::qp::Qp;

/// The name of command descriptors' files, and what the kernel shows of them.
const NAME: &str = "hca-context";
const SHOWN: &str = "/memfd:hca-context";

/// Objects of one kind, by their handles.
pub(crate) struct Table<T>(Mutex<Objects<T>>);
struct Objects<T> {
    last: u32,
    by_handle: HashMap<u32, T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::new(Objects { last: 0, by_handle: HashMap::new() }))
    }
}
impl<T: Clone> Table<T> {
    /// Adds an object, whose handle no other object has.
    pub(crate) fn add(&self, object: T) -> u32 {
        let mut objects = lock(&self.0);
        loop {
            let handle = objects.last.wrapping_add(1);
            objects.last = handle;
            if let Entry::Vacant(place) = objects.by_handle.entry(handle) {
                place.insert(object);
                return handle;
            }
        }
    }
    /// The object of a handle.
    ///
    /// # Errors
    /// `ENOENT`: there is none, as after its end.
    pub(crate) fn get(&self, handle: u32) -> Result<T, Errno> {
        lock(&self.0).by_handle.get(&handle).cloned().ok_or(Errno(libc::ENOENT))
    }
    /// Removes all objects.
    fn take(&self) -> Vec<T> {
        std::mem::take(&mut lock(&self.0).by_handle).into_values().collect()
    }
    /// Removes an object that has ended. Returns whether it was there.
    pub(crate) fn remove(&self, handle: u32) -> bool {
        lock(&self.0).by_handle.remove(&handle).is_some()
    }
}

/// The adapter and the tables of objects that the contexts of a command descriptor and of its duplicates share.
pub(crate) struct File {
    pub(crate) adapter: Arc<Adapter>,
    /// The address of the device.
    device: usize,
    /// How many contexts are open.
    contexts: AtomicUsize,
    /// The addresses of queue pairs.
    qps: Mutex<HashSet<usize>>,
    /// Memory windows, also those that the program does not see.
    windows: Mutex<HashSet<MwHandle>>,
    pub(crate) pds: Table<PdHandle>,
    pub(crate) mrs: Table<Arc<Region>>,
    pub(crate) dms: Table<Arc<Memory>>,
}

/// The device and the inode of a file.
type Inode = (u64, u64);
/// The files of contexts that are open.
static FILES: PerProcess<Mutex<HashMap<Inode, Weak<File>>>> = PerProcess::new();

fn inode(file: &Stat) -> Inode {
    (file.st_dev, file.st_ino)
}

impl File {
    /// The file of a new context, with its command descriptor; without one where the system refuses files in memory.
    pub(crate) fn create(device: In<NamedDevice>) -> Result<(Arc<Self>, Option<OwnedFd>), Errno> {
        let file = Arc::new(Self {
            adapter: Adapter::open(device.get()?)?,
            device: device.raw() as usize,
            contexts: AtomicUsize::new(0),
            qps: Mutex::default(),
            windows: Mutex::default(),
            pds: Table::default(),
            mrs: Table::default(),
            dms: Table::default(),
        });
        let command = memory_file(NAME, MemfdFlags::empty(), 0).ok();
        if let Some(found) = command.as_ref().and_then(|command| fstat(command).ok()) {
            let mut files = lock(FILES.get());
            files.retain(|_, file| file.strong_count() > 0);
            files.insert(inode(&found), Arc::downgrade(&file));
        }
        Ok((file, command))
    }
    /// A context was opened.
    pub(crate) fn opened(&self) {
        self.contexts.fetch_add(1, Ordering::Relaxed);
    }
    /// A context was closed: what is left of the objects ends with the last one, but for the program's own memory of
    /// them.
    pub(crate) fn closed(&self) {
        if self.contexts.fetch_sub(1, Ordering::AcqRel) > 1 || self.adapter.is_of_the_parent() {
            return;
        }
        let qps = std::mem::take(&mut *lock(&self.qps));
        // Objects that the device does not end now end with the device.
        for qp in qps {
            let qp = In::<Qp>::of(qp as *mut Qp);
            let _ = qp.get().and_then(|object| object.end(qp));
        }
        // A region does not end before the windows that are bound to it.
        let windows = std::mem::take(&mut *lock(&self.windows));
        if let Some(device) = self.adapter.device().windows() {
            for &window in &windows {
                let _ = device.dealloc_mw(window);
            }
        }
        for region in self.mrs.take() {
            let _ = region.end();
        }
    }
    pub(crate) fn add_qp(&self, qp: *mut Qp) {
        lock(&self.qps).insert(qp as usize);
    }
    pub(crate) fn remove_qp(&self, qp: *mut Qp) {
        lock(&self.qps).remove(&(qp as usize));
    }
    pub(crate) fn add_window(&self, window: MwHandle) {
        lock(&self.windows).insert(window);
    }
    pub(crate) fn remove_window(&self, window: MwHandle) {
        lock(&self.windows).remove(&window);
    }
    pub(crate) fn device(&self) -> In<NamedDevice> {
        In::of(self.device as *mut NamedDevice)
    }
    /// The file of a descriptor.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the descriptor is of another process's context, or of one that is closed. `EINVAL`: it is another
    /// one.
    fn of(command: c_int) -> Result<Arc<Self>, Errno> {
        let found = stat(command).map_err(|_| INVALID)?;
        if let Some(file) = lock(FILES.get()).get(&inode(&found)).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let shown = std::fs::read_link(format!("/proc/self/fd/{command}"));
        let is_command =
            shown.is_ok_and(|path| path.as_os_str().as_encoded_bytes().starts_with(SHOWN.as_bytes()));
        Err(if is_command { Errno(libc::EOPNOTSUPP) } else { INVALID })
    }
}

/// Takes an object back without ending what it stands for.
fn let_go<T>(object: In<T>) {
    let _ = counted(|| {
        drop(object.take());
        Ok(0)
    });
}

exports! {
    "IBVERBS_1.10" fn ibv_import_device(command: c_int) -> *mut IbvContext {
        // The descriptor is the context's own from now on, unless the call is refused.
        pointer(|| Context::of(File::of(command)?, || Some(owned(command))))
    }
    "IBVERBS_1.10" fn ibv_import_pd(context: In<IbvContext>, handle: u32) -> *mut Pd {
        pointer(|| Pd::import(context, handle))
    }
    "IBVERBS_1.10" fn ibv_unimport_pd(pd: In<Pd>) -> () {
        let is_unused = pd.opt().is_some_and(Pd::is_unused);
        let_go(if is_unused { pd } else { In::null() });
    }
    "IBVERBS_1.10" fn ibv_import_mr(pd: In<Pd>, handle: u32) -> *mut Mr {
        pointer(|| Mr::import(pd, handle))
    }
    "IBVERBS_1.10" fn ibv_unimport_mr(mr: In<Mr>) -> () {
        let_go(mr);
    }
    "IBVERBS_1.13" fn ibv_import_dm(context: In<IbvContext>, handle: u32) -> *mut Dm {
        pointer(|| Dm::import(context, handle))
    }
    "IBVERBS_1.13" fn ibv_unimport_dm(dm: In<Dm>) -> () {
        let_go(dm);
    }
}
