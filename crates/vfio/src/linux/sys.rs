//! The system calls of vfio and iommufd.
//!
//! Invariants:
//! 1. Each call gets a structure of the type that the call's number stands for. The structure lives during the call,
//!    and its `argsz` (or `size`) is at most its length; so the kernel writes within the structure.
//! 2. Memory that a structure names for DMA is the caller's responsibility: the call itself only pins its pages.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::ioctl::{Opcode, opcode};
use vfio_bindings::bindings::vfio;

const fn number(n: u32) -> Opcode {
    opcode::none(vfio::VFIO_TYPE, (vfio::VFIO_BASE + n) as u8)
}
const GET_API_VERSION: Opcode = number(0);
const CHECK_EXTENSION: Opcode = number(1);
const SET_IOMMU: Opcode = number(2);
const GROUP_GET_STATUS: Opcode = number(3);
const GROUP_SET_CONTAINER: Opcode = number(4);
const GROUP_GET_DEVICE_FD: Opcode = number(6);
const DEVICE_GET_INFO: Opcode = number(7);
const DEVICE_GET_REGION_INFO: Opcode = number(8);
const DEVICE_GET_IRQ_INFO: Opcode = number(9);
const DEVICE_SET_IRQS: Opcode = number(10);
const DEVICE_RESET: Opcode = number(11);
const IOMMU_GET_INFO: Opcode = number(12);
const IOMMU_MAP_DMA: Opcode = number(13);
const IOMMU_UNMAP_DMA: Opcode = number(14);
const DEVICE_BIND_IOMMUFD: Opcode = number(18);
const DEVICE_ATTACH_IOMMUFD_PT: Opcode = number(19);

/// What a call of iommufd with this number within its range is.
const fn iommufd(n: u8) -> Opcode {
    opcode::none(vfio::VFIO_TYPE, 0x80 + n)
}
const IOAS_ALLOC: Opcode = iommufd(1);
const IOAS_IOVA_RANGES: Opcode = iommufd(4);
const IOAS_MAP: Opcode = iommufd(5);
const IOAS_UNMAP: Opcode = iommufd(6);
const MAP_FIXED_IOVA: u32 = 1;
const MAP_WRITEABLE: u32 = 2;
const MAP_READABLE: u32 = 4;

/// The longest description with capabilities that is asked for.
const MAX_DESCRIPTION_BYTES: usize = 64 << 10;

/// Calls with a pointer.
///
/// # Safety
/// (1) for `arg`.
unsafe fn call<T: ?Sized>(fd: BorrowedFd<'_>, what: Opcode, arg: *mut T) -> io::Result<i32> {
    // SAFETY: our caller's (1).
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), what as _, arg.cast::<libc::c_void>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
/// Calls with a number, or nothing.
fn call_with(fd: BorrowedFd<'_>, what: Opcode, arg: u32) -> io::Result<i32> {
    // SAFETY: calls with these numbers take a number, or nothing.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), what as _, libc::c_ulong::from(arg)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// Asks for a description of which the kernel says how long it is, in its first word.
///
/// `head` is what the question holds behind that word.
fn describe(fd: BorrowedFd<'_>, what: Opcode, bytes: usize, head: &[u8]) -> io::Result<Vec<u8>> {
    let mut len = bytes;
    loop {
        // Words of 8 bytes, as the structures are aligned.
        let mut words = vec![0_u64; len.div_ceil(8)];
        let mut question = (len as u32).to_ne_bytes().to_vec();
        question.extend_from_slice(head);
        question.resize(question.len().next_multiple_of(8), 0);
        for (word, chunk) in words.iter_mut().zip(question.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*chunk);
        }
        // SAFETY: (1) `words` has `len` bytes at least, and `argsz` says `len`.
        unsafe { call(fd, what, words.as_mut_ptr())? };
        let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let argsz = u32::from_ne_bytes(*out.first_chunk().expect("a description has a word at least"));
        let needs = (argsz as usize).min(MAX_DESCRIPTION_BYTES);
        if needs <= len {
            out.truncate(len);
            return Ok(out);
        }
        len = needs;
    }
}

/// Whether this is the interface that the bindings were made for, and has TYPE1v2.
pub(super) fn container_fits(container: BorrowedFd<'_>) -> io::Result<bool> {
    let version = call_with(container, GET_API_VERSION, 0)?;
    let has = call_with(container, CHECK_EXTENSION, vfio::VFIO_TYPE1v2_IOMMU)?;
    Ok(version == vfio::VFIO_API_VERSION as i32 && has == 1)
}
/// Whether no member of the group is driven by the kernel.
pub(super) fn group_is_viable(group: BorrowedFd<'_>) -> io::Result<bool> {
    let mut status = vfio::vfio_group_status { argsz: 8, flags: 0 };
    // SAFETY: (1) two words, and `argsz` says so.
    unsafe { call(group, GROUP_GET_STATUS, &raw mut status)? };
    Ok(status.flags & vfio::VFIO_GROUP_FLAGS_VIABLE != 0)
}
/// Puts the group into the container.
pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let mut fd = container.as_raw_fd();
    // SAFETY: (1) a descriptor.
    unsafe { call(group, GROUP_SET_CONTAINER, &raw mut fd)? };
    Ok(())
}
/// Has the container use TYPE1v2.
pub(super) fn set_iommu(container: BorrowedFd<'_>) -> io::Result<()> {
    call_with(container, SET_IOMMU, vfio::VFIO_TYPE1v2_IOMMU).map(drop)
}
/// Opens a function of a group.
pub(super) fn device_of(group: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: (1) a text that ends with 0, which is only read.
    let fd = unsafe { call(group, GROUP_GET_DEVICE_FD, name.as_ptr().cast_mut())? };
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
/// The limits of a container's IOMMU.
pub(super) fn iommu_info(container: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    describe(container, IOMMU_GET_INFO, size_of::<vfio::vfio_iommu_type1_info>(), &[])
}

/// Flags, regions and kinds of interrupts.
pub(super) fn device_info(device: BorrowedFd<'_>) -> io::Result<(u32, u32, u32)> {
    let argsz = size_of::<vfio::vfio_device_info>() as u32;
    let mut info = vfio::vfio_device_info { argsz, ..Default::default() };
    // SAFETY: (1) `argsz` says the structure's length.
    unsafe { call(device, DEVICE_GET_INFO, &raw mut info)? };
    Ok((info.flags, info.num_regions, info.num_irqs))
}
/// The description of a region.
pub(super) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<Vec<u8>> {
    let mut head = [0; 8];
    head[4..].copy_from_slice(&index.to_ne_bytes());
    describe(device, DEVICE_GET_REGION_INFO, size_of::<vfio::vfio_region_info>(), &head)
}
/// Flags and number of interrupts of a kind.
pub(super) fn irq_info(device: BorrowedFd<'_>, index: u32) -> io::Result<(u32, u32)> {
    let argsz = size_of::<vfio::vfio_irq_info>() as u32;
    let mut info = vfio::vfio_irq_info { argsz, index, ..Default::default() };
    // SAFETY: (1) `argsz` says the structure's length.
    unsafe { call(device, DEVICE_GET_IRQ_INFO, &raw mut info)? };
    Ok((info.flags, info.count))
}
/// Has interrupts of a kind from 0 on write to these, or none at all where there are none.
pub(super) fn set_irqs(device: BorrowedFd<'_>, kind: u32, eventfds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let count = eventfds.len() as u32;
    let data = if count == 0 { vfio::VFIO_IRQ_SET_DATA_NONE } else { vfio::VFIO_IRQ_SET_DATA_EVENTFD };
    let flags = data | vfio::VFIO_IRQ_SET_ACTION_TRIGGER;
    // The structure's five words, and one for each descriptor.
    let mut words = vec![20 + 4 * count, flags, kind, 0, count];
    words.extend(eventfds.iter().map(|fd| fd.as_fd().as_raw_fd().cast_unsigned()));
    // SAFETY: (1) `argsz` says what there is.
    unsafe { call(device, DEVICE_SET_IRQS, words.as_mut_ptr())? };
    Ok(())
}
/// Closes what a descriptor stands for, though others hold its number: to them it is `nothing` from then on. Calls that
/// are under way end as they would have.
pub(super) fn hollow(fd: BorrowedFd<'_>, nothing: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the number stays that of an open descriptor, and its owner closes it later.
    let done = unsafe { libc::dup3(nothing.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
/// Resets a function.
pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    call_with(device, DEVICE_RESET, 0).map(drop)
}

/// What is to be reached by DMA: where it is here, and there, its length, and what may be done with it.
pub(super) struct Range {
    pub(super) addr: usize,
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) read: bool,
    pub(super) write: bool,
}

/// Maps by a container.
pub(super) fn map(container: BorrowedFd<'_>, r: &Range) -> io::Result<()> {
    let bit = |is: bool, bit| if is { bit } else { 0 };
    let mut map = vfio::vfio_iommu_type1_dma_map {
        argsz: size_of::<vfio::vfio_iommu_type1_dma_map>() as u32,
        flags: bit(r.read, vfio::VFIO_DMA_MAP_FLAG_READ) | bit(r.write, vfio::VFIO_DMA_MAP_FLAG_WRITE),
        vaddr: r.addr as u64,
        iova: r.iova,
        size: r.len,
    };
    // SAFETY: (1) `argsz` says the structure's length; (2).
    unsafe { call(container, IOMMU_MAP_DMA, &raw mut map)? };
    Ok(())
}
/// Unmaps by a container. Returns how many bytes that were.
pub(super) fn unmap(container: BorrowedFd<'_>, iova: u64, size: u64) -> io::Result<u64> {
    /// The structure without the fields for other uses behind it.
    #[repr(C)]
    struct Unmap {
        argsz: u32,
        flags: u32,
        iova: u64,
        size: u64,
    }
    let mut unmap = Unmap { argsz: size_of::<Unmap>() as u32, flags: 0, iova, size };
    // SAFETY: (1) `argsz` says the structure's length.
    unsafe { call(container, IOMMU_UNMAP_DMA, &raw mut unmap)? };
    Ok(unmap.size)
}

/// Gives a function that was opened by its own node to an iommufd.
pub(super) fn bind(device: BorrowedFd<'_>, iommufd: BorrowedFd<'_>) -> io::Result<()> {
    // Kernels that know less of it take the first four words alone.
    let mut bind =
        vfio::vfio_device_bind_iommufd { argsz: 16, iommufd: iommufd.as_raw_fd(), ..Default::default() };
    // SAFETY: (1) `argsz` is less than the structure's length.
    unsafe { call(device, DEVICE_BIND_IOMMUFD, &raw mut bind)? };
    Ok(())
}
/// Puts a function into an address space.
pub(super) fn attach(device: BorrowedFd<'_>, ioas: u32) -> io::Result<()> {
    // The fourth word is for functions with several address spaces; older kernels do not know it.
    let mut attach = vfio::vfio_device_attach_iommufd_pt { argsz: 12, pt_id: ioas, ..Default::default() };
    // SAFETY: (1) `argsz` is less than the structure's length.
    unsafe { call(device, DEVICE_ATTACH_IOMMUFD_PT, &raw mut attach)? };
    Ok(())
}
/// Makes an address space.
pub(super) fn ioas_alloc(iommufd: BorrowedFd<'_>) -> io::Result<u32> {
    // Size, flags, and the number that is given back.
    let mut alloc = [12_u32, 0, 0];
    // SAFETY: (1) the first word says the length.
    unsafe { call(iommufd, IOAS_ALLOC, alloc.as_mut_ptr())? };
    Ok(alloc[2])
}
/// What an address space allows, first and last of each range, and how addresses are aligned.
pub(super) fn ioas_ranges(iommufd: BorrowedFd<'_>, ioas: u32) -> io::Result<(Vec<(u64, u64)>, u64)> {
    #[repr(C)]
    struct Ranges {
        size: u32,
        ioas: u32,
        count: u32,
        reserved: u32,
        ranges: u64,
        alignment: u64,
    }
    const MAX_RANGES: usize = 4096;
    let mut found = vec![[0_u64; 2]; 64];
    loop {
        let mut asked = Ranges {
            size: size_of::<Ranges>() as u32,
            ioas,
            count: found.len() as u32,
            reserved: 0,
            ranges: found.as_mut_ptr().expose_provenance() as u64,
            alignment: 0,
        };
        // SAFETY: (1) `size` says the structure's length; the kernel fills `count` pairs at most, which there are.
        let done = unsafe { call(iommufd, IOAS_IOVA_RANGES, &raw mut asked) };
        let count = asked.count as usize;
        match done {
            Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) && found.len() < count.min(MAX_RANGES) => {
                found.resize(count.min(MAX_RANGES), [0; 2]);
            }
            Err(e) => return Err(e),
            Ok(_) => {
                found.truncate(count);
                return Ok((found.into_iter().map(|[first, last]| (first, last)).collect(), asked.alignment));
            }
        }
    }
}
/// Maps by an address space.
pub(super) fn ioas_map(iommufd: BorrowedFd<'_>, ioas: u32, r: &Range) -> io::Result<()> {
    #[repr(C)]
    struct Map {
        size: u32,
        flags: u32,
        ioas: u32,
        reserved: u32,
        user_va: u64,
        length: u64,
        iova: u64,
    }
    let bit = |is: bool, bit| if is { bit } else { 0 };
    let mut map = Map {
        size: size_of::<Map>() as u32,
        flags: MAP_FIXED_IOVA | bit(r.read, MAP_READABLE) | bit(r.write, MAP_WRITEABLE),
        ioas,
        reserved: 0,
        user_va: r.addr as u64,
        length: r.len,
        iova: r.iova,
    };
    // SAFETY: (1) `size` says the structure's length; (2).
    unsafe { call(iommufd, IOAS_MAP, &raw mut map)? };
    Ok(())
}
/// Unmaps by an address space. Returns how many bytes that were.
pub(super) fn ioas_unmap(iommufd: BorrowedFd<'_>, ioas: u32, iova: u64, length: u64) -> io::Result<u64> {
    #[repr(C)]
    struct Unmap {
        size: u32,
        ioas: u32,
        iova: u64,
        length: u64,
    }
    let mut unmap = Unmap { size: size_of::<Unmap>() as u32, ioas, iova, length };
    // SAFETY: (1) `size` says the structure's length.
    unsafe { call(iommufd, IOAS_UNMAP, &raw mut unmap)? };
    Ok(unmap.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_numbers_that_the_kernel_knows() {
        // `;` and 100, without a direction or a size; on x86 and arm the upper half is 0.
        if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            assert_eq!((GET_API_VERSION, IOMMU_UNMAP_DMA), (0x3b64, 0x3b72));
            assert_eq!((DEVICE_BIND_IOMMUFD, DEVICE_ATTACH_IOMMUFD_PT), (0x3b76, 0x3b77));
            assert_eq!((IOAS_ALLOC, IOAS_MAP, IOAS_UNMAP), (0x3b81, 0x3b85, 0x3b86));
        }
    }

    #[test]
    fn a_descriptor_that_is_not_vfio_s_is_refused_by_each_call() {
        let file = crate::memory::memfd("hca-test", 4096).unwrap();
        let fd = file.as_fd();
        let range = Range { addr: 0, iova: 0, len: 4096, read: true, write: true };
        let refused = [
            container_fits(fd).err(),
            group_is_viable(fd).err(),
            set_container(fd, fd).err(),
            set_iommu(fd).err(),
            device_of(fd, "0000:03:00.0").err(),
            iommu_info(fd).err(),
            device_info(fd).err(),
            region_info(fd, 0).err(),
            irq_info(fd, 2).err(),
            set_irqs(fd, 2, &[fd]).err(),
            reset(fd).err(),
            map(fd, &range).err(),
            unmap(fd, 0, 4096).err(),
            bind(fd, fd).err(),
            attach(fd, 1).err(),
            ioas_alloc(fd).err(),
            ioas_ranges(fd, 1).err(),
            ioas_map(fd, 1, &range).err(),
            ioas_unmap(fd, 1, 0, 4096).err(),
        ];
        for (i, e) in refused.into_iter().enumerate() {
            assert_eq!(e.and_then(|e| e.raw_os_error()), Some(libc::ENOTTY), "call {i}");
        }
    }
}
