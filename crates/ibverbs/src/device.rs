//! Devices, by the environment, and their adapters.

use core::ffi::{c_char, c_int};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, Weak};
use std::time::Duration;

use hca::hca_core::{Counter, Device, DmaMemory, GidType, QpHandle, Qpn};
use hca::{DeviceUrl, Opened};
use hca_fabric::SharedPages;
use hca_process::{Fork, PerProcess, as_library};

use crate::abi::IbvDevice;
use crate::async_event::{Listeners, pump};
use crate::entry::{
    Errno, INVALID, In, at_exit, before_exit, counted, exports, free_list, give_list, last, lock, pointer,
};
use crate::explain::{self, Notes};
use crate::heap;
use crate::null::Nulls;
use crate::window::Binds;
use crate::xrc::Domain;

/// The most bytes of a device's name, with the zero behind it.
const NAME_BYTES: usize = 64;
/// The variable that names the folder with the files of devices.
const FILES_VARIABLE: &str = "HCA_PATHS";

/// The variable by which a program's memory stays where it is.
const KEEP_VARIABLE: &str = "HCA_KEEP_MEMORY";

/// Whether an environment variable asks for something; empty and `0` do not.
pub(crate) fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}

/// A device that programs see.
#[repr(C)]
pub(crate) struct NamedDevice {
    pub(crate) c: IbvDevice,
    pub(crate) name: String,
    pub(crate) url: DeviceUrl,
    pub(crate) guid: [u8; 8],
}

/// The addresses of all devices, which exist until the process ends; an error is told once.
static DEVICES: LazyLock<Result<Vec<usize>, Errno>> =
    LazyLock::new(|| match as_library(hca::named_devices) {
        Ok(devices) => Ok((devices.into_iter().enumerate())
            .map(|(place, device)| Box::into_raw(Box::new(NamedDevice::new(place, device))) as usize)
            .collect()),
        Err(e) => {
            explain::say(format_args!("{e}"));
            Err(INVALID)
        }
    });

/// The addresses of all devices.
pub(crate) fn named_devices() -> Result<&'static [usize], Errno> {
    DEVICES.as_deref().map_err(|e| *e)
}

impl NamedDevice {
    fn new(place: usize, device: hca::NamedDevice) -> Self {
        const NODE_CA: c_int = 1;
        const TRANSPORT_IB: c_int = 0;
        let guid = device.node_guid();
        let hca::NamedDevice { name, url } = device;
        let mut c = IbvDevice {
            ops: [core::ptr::null(); 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: [0; NAME_BYTES],
            dev_name: [0; NAME_BYTES],
            dev_path: [0; 256],
            ibdev_path: [0; 256],
        };
        put(&mut c.name, &name);
        put(&mut c.dev_name, &format!("uverbs{place}"));
        put(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/uverbs{place}"));
        put(&mut c.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        Self { c, name, url, guid }
    }
}

/// Stores a text with a zero behind it; one that is too long is cut.
fn put(to: &mut [c_char], text: &str) {
    let last = to.len() - 1;
    for (to, from) in to[..last].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// An open adapter, which all contexts of one device in a process share.
pub(crate) struct Adapter {
    name: String,
    fork: Fork,
    opened: Opened,
    /// The numbers of queue pairs by the index of their handles, with the generations above them.
    qpns: Box<[AtomicU64]>,
    pub(crate) listeners: Listeners,
    pub(crate) nulls: Nulls,
    pub(crate) binds: Binds,
    /// Registered memory is moved where peers can map it.
    pub(crate) moves_memory: bool,
    /// The service level of completions of datagrams, see [`packet_type`].
    pub(crate) packet_type: u8,
    /// Requests and regions, where errors are to be explained.
    pub(crate) notes: Option<Box<Notes>>,
    /// XRC domains that files name, by the files' devices and numbers.
    pub(crate) xrc_files: Mutex<HashMap<(u64, u64), Weak<Domain>>>,
}

/// The type of a RoCE port's packets, as completions of datagrams have it in the place of a service level, which such
/// packets lack. Programs need it to find the addresses in the header of a datagram: UCX drops datagrams otherwise. 0 is
/// RoCEv1, or an InfiniBand port; 1 is RoCEv2 over IPv6, 2 over IPv4.
fn packet_type(device: &dyn Device) -> u8 {
    let port = device.port();
    let v2 = device.gids().iter().any(|entry| entry.kind == GidType::RoceV2);
    match port.gid.ip().is_ipv4() {
        _ if !v2 => 0,
        false => 1,
        true => 2,
    }
}

/// Whether a device's peers map its memory, and the program does not keep its own where it is.
fn moves_memory(device: &dyn Device) -> bool {
    let is_mapped = |memory: DmaMemory| SharedPages::find(memory.addr().addr().get(), memory.len()).is_some();
    !is_set(KEEP_VARIABLE) && device.alloc_memory(1).is_ok_and(is_mapped)
}

impl Drop for Adapter {
    fn drop(&mut self) {
        if !self.fork.is_child() {
            self.count_for_ever();
        }
    }
}

/// The adapters that are open, by their devices' names.
static OPEN: PerProcess<Mutex<HashMap<String, Weak<Adapter>>>> = PerProcess::new();
/// A program that ends waits so long for its acknowledgements, its captures and its counters.
const AT_EXIT: Duration = Duration::from_millis(500);

/// Acknowledges what the program has received, writes captures to the end, and keeps what was counted, when the program
/// ends with its devices open.
fn adapters_end_with_the_program() {
    extern "C" fn end() {
        last("hca-at-exit", AT_EXIT, || {
            let open: Vec<_> = lock(OPEN.get()).values().filter_map(Weak::upgrade).collect();
            for adapter in &open {
                adapter.opened.acknowledge();
                adapter.count_for_ever();
                let _ = adapter.opened.finish_capture();
            }
        });
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| at_exit(end));
    before_exit(acknowledge_at_once);
}
/// Acknowledges what the program has received, as it calls `_exit`, maybe in a signal handler.
extern "C" fn acknowledge_at_once() {
    let Ok(open) = OPEN.get().try_lock() else { return };
    for adapter in open.values().filter_map(Weak::upgrade) {
        adapter.opened.acknowledge_at_once();
        // Its end would take its time.
        core::mem::forget(adapter);
    }
}

/// Adds counters to those in a file, by their names.
fn add_up(folder: &Path, file: &str, counters: &[Counter]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(folder.join(file))?;
    // The end of the process releases the lock, too.
    file.lock()?;
    let mut before = String::new();
    file.read_to_string(&mut before)?;
    let mut sums = BTreeMap::new();
    for (name, value) in before.lines().filter_map(|line| line.split_once('\t')) {
        *sums.entry(name).or_insert(0_u64) += value.parse().unwrap_or(0);
    }
    for counter in counters.iter().filter(|counter| counter.value > 0) {
        *sums.entry(counter.name).or_default() += counter.value;
    }
    let text: String = sums.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect();
    file.rewind()?;
    // No value has fewer digits than before.
    file.write_all(text.as_bytes())
}

impl Adapter {
    /// The adapter of a device: one that is open already, or a new one.
    pub(crate) fn open(device: &NamedDevice) -> Result<Arc<Self>, Errno> {
        let mut open = lock(OPEN.get());
        if let Some(adapter) = open.get(&device.name).and_then(Weak::upgrade) {
            return Ok(adapter);
        }
        let refuse = |why: &dyn core::fmt::Display| {
            explain::say(format_args!("device {}: {why}", device.name));
            Errno(libc::ENODEV)
        };
        let opened = as_library(|| hca::open_exactly(&device.url)).map_err(|e| refuse(&e))?;
        if opened.device().needs_turns() {
            return Err(refuse(
                &"C programs expect an adapter that works by itself: use progress=adaptive or thread",
            ));
        }
        heap::offer();
        let opened_device = &**opened.device();
        let (packet_type, moves_memory) = (packet_type(opened_device), moves_memory(opened_device));
        let qpns = (0..opened_device.attr().max_qp as usize + 1).map(|_| AtomicU64::new(0)).collect();
        let adapter = Arc::new(Self {
            name: device.name.clone(),
            fork: Fork::new(),
            opened,
            qpns,
            listeners: Listeners::default(),
            nulls: Nulls::default(),
            binds: Binds::default(),
            moves_memory,
            packet_type,
            notes: Notes::new(),
            xrc_files: Mutex::default(),
        });
        pump(&adapter);
        if let Some(tree) = std::env::var_os(FILES_VARIABLE) {
            let port = format!("{}/{}", tree.to_string_lossy(), device.name);
            hca::stat::count_for(adapter.opened.device(), &port);
        }
        adapters_end_with_the_program();
        open.insert(device.name.clone(), Arc::downgrade(&adapter));
        Ok(adapter)
    }
    /// Keeps what the adapter has counted among the files of its device, as its port's counters go on there. Once only.
    fn count_for_ever(&self) {
        let Some(counters) = hca::stat::hide(self.opened.device()) else { return };
        if let Some(tree) = std::env::var_os(FILES_VARIABLE) {
            // Without the right to write there, the port has counted nothing.
            let _ = add_up(&Path::new(&tree).join("ended"), &self.name, &counters);
        }
    }
    /// Whether this process is a child of the one that opened it.
    pub(crate) fn is_of_the_parent(&self) -> bool {
        self.fork.is_child()
    }
    /// The adapter, for the layers that stand on the safe verbs.
    pub(crate) fn verbs(&self) -> &hca::Context {
        self.opened.context()
    }
    #[inline]
    pub(crate) fn device(&self) -> &dyn Device {
        &**self.opened.device()
    }
    /// Notes the number of a new queue pair.
    pub(crate) fn note(&self, qp: QpHandle, qpn: Qpn) {
        if let Some(slot) = self.qpns.get(qp.index as usize) {
            slot.store(u64::from(qp.generation) << 32 | u64::from(qpn.raw()), Ordering::Release);
        }
    }
    /// The number of the queue pair of a completion; 0 if it is not known any more.
    #[inline]
    pub(crate) fn qpn(&self, qp: QpHandle) -> u32 {
        let noted = self.qpns.get(qp.index as usize).map_or(0, |slot| slot.load(Ordering::Acquire));
        if (noted >> 32) as u32 == qp.generation { noted as u32 } else { 0 }
    }
}

exports! {
    "IBVERBS_1.1" fn ibv_get_device_list(count: In<c_int>) -> *mut *mut NamedDevice {
        pointer(|| {
            // Programs that look at the number alone find no device where the list is refused.
            let _ = count.set(0);
            let devices = DEVICES.as_ref().map_err(|e| *e)?;
            let list = give_list(&devices.iter().map(|&at| at as *mut NamedDevice).collect::<Vec<_>>())?;
            // Programs that do not want the number pass null.
            let _ = count.set(devices.len() as c_int);
            Ok(list)
        })
    }
    "IBVERBS_1.1" fn ibv_free_device_list(list: In<*mut NamedDevice>) -> () {
        free_list(list);
    }
    "IBVERBS_1.1" fn ibv_get_device_name(device: In<NamedDevice>) -> *const c_char {
        pointer(|| Ok(device.get()?.c.name.as_ptr().cast_mut()))
    }
    "IBVERBS_1.1" fn ibv_get_device_guid(device: In<NamedDevice>) -> u64 {
        device.opt().map_or(0, |device| u64::from_ne_bytes(device.guid))
    }
    "IBVERBS_1.9" fn ibv_get_device_index(device: In<NamedDevice>) -> c_int {
        counted(|| {
            let devices = DEVICES.as_ref().map_err(|e| *e)?;
            let at = devices.iter().position(|&at| at == device.raw() as usize);
            at.map(|at| at as c_int).ok_or(INVALID)
        })
    }
}
