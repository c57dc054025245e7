//! The device, bundles and endpoints. A handle is a number that is given once, so that a stale one names nothing.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use hca::Context;
use hca::am::{Bundle, EndpointId, Parallel, Way};

use crate::border::{Code, Result};

/// An endpoint of a bundle.
#[derive(Clone, Copy)]
pub(crate) struct Endpoint {
    pub(crate) bundle: usize,
    pub(crate) id: EndpointId,
    pub(crate) mask: i32,
}

/// The objects of a program, by their handles.
#[derive(Default)]
pub(crate) struct Objects {
    /// Calls of AM_Init that no AM_Terminate has ended.
    inits: usize,
    /// How often the last of them was ended.
    session: u64,
    /// The device's name and the way, as AM_SetDevice sets them.
    pub(crate) device: Option<(String, Way)>,
    context: Option<Context>,
    pub(crate) bundles: HashMap<usize, Parallel>,
    pub(crate) endpoints: HashMap<usize, Endpoint>,
    last: usize,
}

static OBJECTS: LazyLock<Mutex<Objects>> = LazyLock::new(Mutex::default);

/// The objects of the process. No bundle is used under this lock.
pub(crate) fn objects() -> MutexGuard<'static, Objects> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    pub(crate) fn handle(&mut self) -> usize {
        self.last += 1;
        self.last
    }
    pub(crate) fn is_open(&self) -> bool {
        self.inits > 0
    }
    pub(crate) fn init(&mut self) -> Result {
        if self.context.is_none() {
            let name = self.device.as_ref().map_or("auto://", |(name, _)| name);
            let opened = hca::open(name).inspect_err(|error| {
                // Where standard error can't be written, it is lost.
                let _ = writeln!(std::io::stderr(), "am: {error}");
            });
            self.context = Some(opened.map_err(|_| Code::Resource)?);
        }
        self.inits += 1;
        Ok(())
    }
    /// Ends an AM_Init. Returns the bundles, which are freed without the lock.
    pub(crate) fn terminate(&mut self) -> Result<Vec<Parallel>> {
        self.inits = self.inits.checked_sub(1).ok_or(Code::NotInit)?;
        if self.inits > 0 {
            return Ok(Vec::new());
        }
        self.session += 1;
        self.context = None;
        self.endpoints.clear();
        Ok(self.bundles.drain().map(|(_, bundle)| bundle).collect())
    }
    /// The device, and the way of its bundles.
    pub(crate) fn context(&self) -> Result<(Context, Way)> {
        let way = self.device.as_ref().map_or(Way::Verbs, |(_, way)| *way);
        Ok((self.context.clone().ok_or(Code::NotInit)?, way))
    }
    /// The time between two ends of all: a bundle is of the one in which its device was taken.
    pub(crate) fn session(&self) -> u64 {
        self.session
    }
    /// Adds a bundle that was made without the lock.
    ///
    /// # Errors
    /// All was ended meanwhile. The bundle comes back, to be freed without the lock.
    pub(crate) fn add_bundle(
        &mut self,
        session: u64,
        bundle: Parallel,
    ) -> std::result::Result<usize, Parallel> {
        if self.session != session || !self.is_open() {
            return Err(bundle);
        }
        let handle = self.handle();
        self.bundles.insert(handle, bundle);
        Ok(handle)
    }
    /// Adds an endpoint of a bundle that was there without the lock.
    ///
    /// # Errors
    /// The bundle was freed meanwhile.
    pub(crate) fn add_endpoint(&mut self, bundle: usize, id: EndpointId) -> Result<usize> {
        if !self.bundles.contains_key(&bundle) {
            return Err(Code::BadArg);
        }
        let handle = self.handle();
        self.endpoints.insert(handle, Endpoint { bundle, id, mask: 0 });
        Ok(handle)
    }
}

/// The bundle of a handle.
pub(crate) fn bundle(handle: usize) -> Result<Parallel> {
    let objects = objects();
    if !objects.is_open() {
        return Err(Code::NotInit);
    }
    objects.bundles.get(&handle).cloned().ok_or(Code::BadArg)
}
/// The endpoint of a handle.
pub(crate) fn endpoint(handle: usize) -> Result<Endpoint> {
    let objects = objects();
    if !objects.is_open() {
        return Err(Code::NotInit);
    }
    objects.endpoints.get(&handle).copied().ok_or(Code::BadArg)
}
/// Uses an endpoint and its bundle.
pub(crate) fn with<T>(
    handle: usize,
    call: impl FnOnce(&mut Bundle, EndpointId) -> std::result::Result<T, hca::am::Error>,
) -> Result<T> {
    let endpoint = endpoint(handle)?;
    Ok(bundle(endpoint.bundle)?.with(|bundle| call(bundle, endpoint.id))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_beside_the_end_of_all_is_not_kept() {
        let mut objects =
            Objects { device: Some(("loopback://am-c-end".into(), Way::Verbs)), ..Objects::default() };
        objects.init().unwrap();
        let made = |objects: &Objects| {
            let (context, way) = objects.context().unwrap();
            (objects.session(), Parallel::new(Bundle::open(&context, way).unwrap()))
        };
        let (session, late) = made(&objects);
        let (_, kept) = made(&objects);
        let handle = objects.add_bundle(session, kept).unwrap_or_else(|_| panic!("nothing was ended"));
        let id = objects.bundles[&handle].with(Bundle::endpoint).unwrap();
        assert!(objects.add_endpoint(handle, id).is_ok());
        assert_eq!(objects.terminate().unwrap().len(), 1);
        assert!(objects.add_endpoint(handle, id).is_err(), "its bundle was freed");
        let late = objects.add_bundle(session, late).expect_err("all was ended");
        // Nor once it was begun again.
        objects.init().unwrap();
        objects.add_bundle(session, late).expect_err("its device is another one");
        assert!(objects.bundles.is_empty() && objects.endpoints.is_empty());
    }
}
