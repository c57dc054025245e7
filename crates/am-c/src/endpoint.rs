//! Bundles and endpoints: segments, tags, translations, handlers, events.

use std::ffi::{c_char, c_int};

use hca::am::{
    Bundle, Detached, EndpointId, EndpointName, Error, EventMask, MAX_TRANSLATIONS, Options, Parallel,
    Segment, Tag, Way,
};

use crate::border::{Address, Code, Handler, Ptr, Result, call, exports, is_in_handler, tell};
use crate::objects::{bundle, endpoint, objects, with};

/// `en_t`.
pub(crate) type CName = [u8; 64];

/// The text of a name.
pub(crate) fn name_of(name: &EndpointName) -> CName {
    let mut out = [0; 64];
    let text = name.to_string();
    // An IPv6 address and two numbers have 53 bytes at most.
    out[..text.len()].copy_from_slice(text.as_bytes());
    out
}
fn parse(name: &CName) -> Result<EndpointName> {
    let end = name.iter().position(|&byte| byte == 0).ok_or(Code::BadArg)?;
    let text = std::str::from_utf8(&name[..end]).map_err(|_| Code::BadArg)?;
    text.parse().map_err(|_| Code::BadArg)
}
fn index(number: c_int) -> Result<usize> {
    usize::try_from(number).map_err(|_| Code::BadArg)
}
/// The name and the tag of a mapped index.
fn mapped(ep: usize, at: c_int) -> Result<(EndpointName, Tag)> {
    let at = index(at)?;
    with(ep, |bundle, id| bundle.mapped(id, at))?.ok_or(Code::BadArg)
}

/// Adds an endpoint that moves to a bundle; or leaves the endpoint where it is.
fn attach(to: &Parallel, moving: &mut Option<Detached>) -> Result<EndpointId> {
    let attached = to.with(|bundle| {
        let detached = moving.take().ok_or(Error::Endpoint)?;
        bundle.attach(detached).map_err(|(detached, error)| {
            *moving = Some(detached);
            error
        })
    });
    Ok(attached?)
}

/// `en_t` as an argument by value: a structure of 64 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NameArg {
    pub(crate) text: CName,
}

exports! {
    fn AM_SetDevice(url: Ptr<c_char>, via: c_int) {
        let name = url.text()?;
        let mut objects = objects();
        if objects.is_open() {
            return Err(Code::InUse);
        }
        objects.device = Some((name, if via == 0 { Way::Verbs } else { Way::Via }));
        Ok(())
    }
    fn AM_Init() {
        objects().init()
    }
    fn AM_Terminate() {
        if is_in_handler() {
            return Err(Code::BadArg);
        }
        let bundles = objects().terminate()?;
        drop(bundles);
        Ok(())
    }
    fn AM_AllocateBundle(kind: c_int, out: Ptr<usize>) {
        let ((context, way), session) = {
            let objects = objects();
            (objects.context()?, objects.session())
        };
        let out = out.there()?;
        let make = match kind {
            0 | 1 => |bundle| Ok(Parallel::new(bundle)),
            2 => Parallel::offloaded,
            _ => return Err(Code::BadArg),
        };
        let made = make(Bundle::open(&context, way)?)?;
        let added = objects().add_bundle(session, made);
        out.write(added.map_err(|_| Code::NotInit)?)
    }
    fn AM_FreeBundle(of: usize) {
        bundle(of)?.with(|_| Ok(()))?;
        let mut objects = objects();
        let freed = objects.bundles.remove(&of).ok_or(Code::BadArg)?;
        objects.endpoints.retain(|_, endpoint| endpoint.bundle != of);
        drop(objects);
        drop(freed);
        Ok(())
    }
    fn AM_AllocateEndpoint(of: usize, out: Ptr<usize>, name: Ptr<CName>) {
        let (bundle, out, name) = (bundle(of)?, out.there()?, name.there()?);
        let (id, own) = bundle.with(|bundle| {
            let id = bundle.endpoint()?;
            Ok((id, bundle.name(id)?))
        })?;
        let handle = objects().add_endpoint(of, id)?;
        name.write(name_of(&own))?;
        out.write(handle)
    }
    fn AM_FreeEndpoint(ep: usize) {
        with(ep, |bundle, id| bundle.free_endpoint(id))?;
        objects().endpoints.remove(&ep);
        Ok(())
    }
    fn AM_MoveEndpoint(ep: usize, from: usize, to: usize) {
        let endpoint = endpoint(ep)?;
        let (source, target) = (bundle(endpoint.bundle)?, bundle(to)?);
        if endpoint.bundle != from {
            return Err(Code::BadArg);
        }
        if from == to {
            return Ok(());
        }
        // One lock at a time: another thread may move an endpoint in the other direction.
        let mut moving = Some(source.with(|bundle| bundle.detach(endpoint.id))?);
        let (handle, id, moved) = match attach(&target, &mut moving) {
            Ok(id) => (to, id, Ok(())),
            Err(code) => (from, attach(&source, &mut moving)?, Err(code)),
        };
        if let Some(known) = objects().endpoints.get_mut(&ep) {
            (known.bundle, known.id) = (handle, id);
        }
        moved
    }
    fn AM_SetSeg(ep: usize, address: Address, bytes: usize) {
        if !address.is_null() || bytes == 0 {
            return Err(Code::BadArg);
        }
        with(ep, |bundle, id| bundle.set_segment(id, bytes)).map(drop)
    }
    fn AM_GetSeg(ep: usize, address: Ptr<usize>, bytes: Ptr<usize>) {
        let segment = with(ep, |bundle, id| bundle.segment(id))?;
        let (address, bytes) = (address.there()?, bytes.there()?);
        address.write(segment.as_ref().map_or(0, Segment::addr) as usize)?;
        bytes.write(segment.as_ref().map_or(0, Segment::len))
    }
    fn AM_MaxSegLength(out: Ptr<usize>) {
        let (context, _) = objects().context()?;
        out.write(usize::try_from(context.attr().max_mr_bytes).unwrap_or(usize::MAX))
    }
    fn AM_SetTag(ep: usize, tag: u64) {
        with(ep, |bundle, id| bundle.set_tag(id, Tag(tag)))
    }
    fn AM_GetTag(ep: usize, out: Ptr<u64>) {
        out.write(with(ep, |bundle, id| bundle.tag(id))?.0)
    }
    fn AM_Map(ep: usize, at: c_int, name: NameArg, tag: u64) {
        let (at, name) = (index(at)?, parse(&name.text)?);
        with(ep, |bundle, id| bundle.map(id, at, &name, Tag(tag)))
    }
    fn AM_MapAny(ep: usize, out: Ptr<c_int>, name: NameArg, tag: u64) {
        let (out, name) = (out.there()?, parse(&name.text)?);
        out.write(with(ep, |bundle, id| bundle.map_any(id, &name, Tag(tag)))? as c_int)
    }
    fn AM_UnMap(ep: usize, at: c_int) {
        let at = index(at)?;
        with(ep, |bundle, id| bundle.unmap(id, at))
    }
    fn AM_GetTranslationInuse(ep: usize, at: c_int) {
        mapped(ep, at).map(drop)
    }
    fn AM_GetTranslationTag(ep: usize, at: c_int, out: Ptr<u64>) {
        out.write(mapped(ep, at)?.1.0)
    }
    fn AM_GetTranslationName(ep: usize, at: c_int, out: Ptr<CName>) {
        out.write(name_of(&mapped(ep, at)?.0))
    }
    fn AM_GetNumTranslations(ep: usize, out: Ptr<c_int>) {
        out.write(with(ep, |bundle, id| bundle.translations(id))? as c_int)
    }
    fn AM_MaxNumTranslations(out: Ptr<c_int>) {
        objects().context()?;
        out.write(MAX_TRANSLATIONS as c_int)
    }
    fn AM_SetNumTranslations(ep: usize, count: c_int) {
        let count = index(count)?;
        with(ep, |bundle, id| bundle.set_translations(id, count))
    }
    fn AM_SetExpectedResources(ep: usize, endpoints: c_int, outstanding: c_int) {
        endpoint(ep)?;
        index(endpoints).and(index(outstanding)).map(drop)
    }
    fn AM_SetHandler(ep: usize, number: c_int, function: Option<Handler>) {
        let function = function.ok_or(Code::BadArg)?;
        let number = u16::try_from(number).map_err(|_| Code::BadArg)?;
        with(ep, |bundle, id| match number {
            0 => bundle.set_error_handler(id, move |message| tell(function, message)),
            _ => bundle.set_handler(id, number, move |message, token| call(function, ep, message, token)),
        })
    }
    fn AM_SetHandlerAny(ep: usize, out: Ptr<c_int>, function: Option<Handler>) {
        let (out, function) = (out.there()?, function.ok_or(Code::BadArg)?);
        let set = with(ep, |bundle, id| {
            bundle.set_handler_any(id, move |message, token| call(function, ep, message, token))
        })?;
        out.write(set.into())
    }
    fn AM_GetNumHandlers(ep: usize, out: Ptr<c_int>) {
        endpoint(ep)?;
        out.write(Options::default().handlers.into())
    }
    fn AM_SetEventMask(ep: usize, mask: c_int) {
        let events = match mask {
            0 => EventMask::None,
            1 => EventMask::NotEmpty,
            _ => return Err(Code::BadArg),
        };
        with(ep, |bundle, id| bundle.set_event_mask(id, events))?;
        if let Some(endpoint) = objects().endpoints.get_mut(&ep) {
            endpoint.mask = mask;
        }
        Ok(())
    }
    fn AM_GetEventMask(ep: usize, out: Ptr<c_int>) {
        out.write(endpoint(ep)?.mask)
    }
    fn AM_WaitSema(of: usize) {
        bundle(of)?.wait(None)?;
        Ok(())
    }
    fn AM_Poll(of: usize) {
        bundle(of)?.with(Bundle::poll)?;
        Ok(())
    }
}
