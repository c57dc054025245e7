//! Functions of this machine, bound to vfio-pci, whose ports reach each other. The environment names them; no other
//! program may use them meanwhile.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use hca_conformance::{Bed, Feature};
use hca_core::{Device, Gid};
use hca_mlx5::{Mlx5, Options};
use hca_vfio::{PciAddress, PciFunction};
use softhca_pci::PortKind;

use super::*;

/// Addresses of functions with blanks between them. Some checks take four.
const VARIABLE: &str = "HCA_VFIO_FUNCTIONS";

/// Functions of this machine. Checks run beside each other as far as there are enough.
pub(crate) struct LinuxBed {
    /// Those of this check, and the drivers on them.
    taken: Mutex<Vec<(usize, Weak<Mlx5>)>>,
}

/// All functions.
struct Functions {
    addresses: Vec<PciAddress>,
    port: PortKind,
    /// Those that no check has.
    free: Mutex<Vec<usize>>,
    given_back: Condvar,
}

impl Functions {
    /// Those that the environment names, if it does.
    fn named() -> Option<&'static Self> {
        static ALL: OnceLock<Option<Functions>> = OnceLock::new();
        ALL.get_or_init(|| std::env::var(VARIABLE).ok().map(|names| Self::find(&names))).as_ref()
    }

    fn find(names: &str) -> Self {
        let read = |name: &str| name.parse().unwrap_or_else(|e| panic!("{VARIABLE}: {e}"));
        let addresses: Vec<PciAddress> = names.split_whitespace().map(read).collect();
        let is_roce = |address: &PciAddress| open(*address, Options::default()).attr().fabric == "roce";
        let roce = addresses.iter().filter(|address| is_roce(address)).count();
        assert!(roce == 0 || roce == addresses.len(), "{VARIABLE}: ports of two kinds");
        let port = if roce > 0 { PortKind::Roce } else { PortKind::InfiniBand };
        let free = Mutex::new((0..addresses.len()).collect());
        Self { addresses, port, free, given_back: Condvar::new() }
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They are free again.
    fn give_back(&self, functions: impl Iterator<Item = usize>) {
        self.free().extend(functions);
        self.given_back.notify_all();
    }

    /// Waits until `n` are free, and takes them.
    fn take(&self, n: usize) -> Vec<usize> {
        assert!(n <= self.addresses.len(), "this check takes {n} functions: name as many in {VARIABLE}");
        let free = self.given_back.wait_while(self.free(), |free| free.len() < n);
        let mut free = free.unwrap_or_else(PoisonError::into_inner);
        let rest = free.len() - n;
        free.split_off(rest)
    }
}

/// The driver on a function.
fn open(address: PciAddress, options: Options) -> Arc<Mlx5> {
    let function = PciFunction::open(address).unwrap_or_else(|e| panic!("{e}"));
    Mlx5::open(function, options).unwrap_or_else(|e| panic!("{e}"))
}

impl LinuxBed {
    pub(crate) const fn new() -> Self {
        Self { taken: Mutex::new(Vec::new()) }
    }
    fn functions() -> &'static Functions {
        Functions::named().expect("the bed is possible")
    }
}

impl Bed for LinuxBed {
    fn name(&self) -> String {
        "Linux vfio".into()
    }
    fn open(&self, n: usize) -> Vec<Arc<dyn Device>> {
        let all = Self::functions();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // The check may have opened and closed some before.
        all.give_back(taken.extract_if(.., |(_, device)| device.strong_count() == 0).map(|(i, _)| i));
        let new = taken.len()..taken.len() + n;
        taken.extend(all.take(n).into_iter().map(|i| (i, Weak::new())));
        let one = |(i, driver): &mut (usize, Weak<Mlx5>)| -> Arc<dyn Device> {
            let device = open(all.addresses[*i], options(all.port, *i));
            *driver = Arc::downgrade(&device);
            device
        };
        taken[new].iter_mut().map(one).collect()
    }
    fn can(&self, feature: Feature) -> bool {
        offered(feature)
    }
    fn silent_gid(&self) -> Option<Gid> {
        silent(Self::functions().port)
    }
    fn patience(&self) -> Duration {
        // The machine may be an emulated one.
        Duration::from_secs(60)
    }
}

impl Drop for LinuxBed {
    fn drop(&mut self) {
        // The devices are gone by now.
        let taken = self.taken.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !taken.is_empty() {
            Self::functions().give_back(taken.drain(..).map(|(i, _)| i));
        }
    }
}
