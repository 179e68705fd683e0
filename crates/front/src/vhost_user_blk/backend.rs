//! The messages of a front end (QEMU, cloud-hypervisor), as the `vhost` crate hands them over: one connection, with the
//! virtqueues that it has set up.
//!
//! What a message names (queues, sizes, addresses, files) is checked here; a message that cannot be followed ends the
//! connection, and with it the rings.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, OFlags};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestRegionMmap};

use super::config::{SPACE_BYTES, Shape};
use super::inflight::Area;
use super::request::Memory;
use super::ring::{Control, End, Ring, Setup, Shared, notify};
use crate::volume::Export;

/// Descriptors of the largest queue: what QEMU can ask for.
const QUEUE_SIZE_MAX: u16 = 1024;
/// How long what is under way may take when a ring is to stop, which its guest waits for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A part of the guest's memory: where the front end has it, and where the guest.
struct Mapping {
    user_addr: u64,
    guest_phys_addr: u64,
    bytes: u64,
}

/// Where a queue is, in the front end's addresses.
#[derive(Clone, Copy)]
struct Addresses {
    descriptor: u64,
    available: u64,
    used: u64,
}

/// A queue that runs.
struct Running {
    shared: Arc<Shared>,
    thread: JoinHandle<u16>,
}

/// A queue.
struct Vring {
    size: u16,
    addresses: Option<Addresses>,
    /// The place in the available ring from which on nothing was taken.
    base: u16,
    call: Option<Arc<OwnedFd>>,
    error: Option<Arc<OwnedFd>>,
    is_enabled: bool,
    running: Option<Running>,
}

/// See the module.
pub struct Backend {
    export: Arc<dyn Export>,
    shape: Arc<Shape>,
    memory: Arc<Memory>,
    mappings: Vec<Mapping>,
    features: u64,
    inflight: Option<Area>,
    vrings: Vec<Vring>,
}

fn unasked<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

/// Refuses a file that is shorter than what is said to be in it: to look behind its end would be this process's death.
fn check_length(file: &File, offset: u64, bytes: u64) -> Result<()> {
    let metadata = file.metadata().map_err(Error::ReqHandlerError)?;
    let end = offset.checked_add(bytes).ok_or(Error::InvalidParam)?;
    if metadata.is_file() && metadata.len() < end {
        let text = format!("a file of {} bytes was given for memory up to byte {end} of it", metadata.len());
        return Err(Error::ReqHandlerError(io::Error::other(text)));
    }
    Ok(())
}

impl Backend {
    pub fn new(export: Arc<dyn Export>, shape: Arc<Shape>) -> Backend {
        let vring =
            || Vring { size: 0, addresses: None, base: 0, call: None, error: None, is_enabled: false, running: None };
        let vrings = (0..shape.queues).map(|_| vring()).collect();
        let (memory, mappings) = (Arc::new(Memory::new()), Vec::new());
        Backend { export, shape, memory, mappings, features: 0, inflight: None, vrings }
    }

    fn vring(&mut self, index: impl Into<u64>) -> Result<&mut Vring> {
        let index = usize::try_from(index.into()).map_err(|_| Error::InvalidParam)?;
        self.vrings.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// Ends all rings.
    pub fn end(&mut self, end: End) {
        for vring in &self.vrings {
            if let Some(running) = &vring.running {
                running.shared.change(|control| control.end = Some(end));
            }
        }
        self.vrings.iter_mut().for_each(|vring| vring.stop(end));
    }

    fn guest_address(&self, user: u64) -> Result<GuestAddress> {
        let found = self.mappings.iter().find_map(|mapping| {
            let offset = user.checked_sub(mapping.user_addr)?;
            (offset < mapping.bytes).then(|| mapping.guest_phys_addr + offset)
        });
        found.map(GuestAddress).ok_or(Error::InvalidParam)
    }

    /// The queue as it was set up.
    fn queue(&self, vring: &Vring) -> Result<Queue> {
        let refuse = |error: virtio_queue::Error| Error::ReqHandlerError(io::Error::other(error));
        let addresses = vring.addresses.ok_or(Error::InvalidOperation("a ring without addresses"))?;
        let mut queue = Queue::new(QUEUE_SIZE_MAX).map_err(refuse)?;
        queue.try_set_size(vring.size).map_err(refuse)?;
        queue.try_set_desc_table_address(self.guest_address(addresses.descriptor)?).map_err(refuse)?;
        queue.try_set_avail_ring_address(self.guest_address(addresses.available)?).map_err(refuse)?;
        queue.try_set_used_ring_address(self.guest_address(addresses.used)?).map_err(refuse)?;
        queue.set_event_idx(self.features & 1 << VIRTIO_RING_F_EVENT_IDX != 0);
        queue.set_next_avail(vring.base);
        queue.set_ready(true);
        if !queue.is_valid(&*self.memory) {
            return unasked("a ring outside of the guest's memory");
        }
        Ok(queue)
    }

    fn start(&mut self, index: u16, kick: OwnedFd) -> Result<()> {
        let vring = &self.vrings[usize::from(index)];
        let queue = self.queue(vring)?;
        let inflight = match &self.inflight {
            Some(area) => Some(area.queue(index, vring.size).ok_or(Error::InvalidParam)?),
            None => None,
        };
        // Without the protocol's own features there is no message that enables a ring.
        let has_enable = self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        let control = Control {
            memory: Arc::clone(&self.memory),
            call: vring.call.clone(),
            error: vring.error.clone(),
            is_enabled: vring.is_enabled || !has_enable,
            end: None,
        };
        let shared = Arc::new(Shared::new(control).map_err(Error::ReqHandlerError)?);
        let setup = Setup {
            index,
            shared: Arc::clone(&shared),
            export: Arc::clone(&self.export),
            shape: Arc::clone(&self.shape),
            is_writethrough: self.shape.is_writethrough(self.features),
            queue,
            kick,
            inflight,
        };
        let ring = Ring::new(setup);
        let thread = std::thread::Builder::new()
            .name(format!("vhost-ring-{index}"))
            .spawn(move || ring.run())
            .map_err(Error::ReqHandlerError)?;
        self.vrings[usize::from(index)].running = Some(Running { shared, thread });
        Ok(())
    }
}

impl Vring {
    fn stop(&mut self, end: End) {
        let Some(Running { shared, thread }) = self.running.take() else { return };
        shared.change(|control| control.end = Some(end));
        match thread.join() {
            Ok(base) => self.base = base,
            Err(_) => tracing::error!("the thread of a virtqueue had panicked"),
        }
    }

    fn refuse_while_running(&self) -> Result<()> {
        if self.running.is_some() { unasked("a ring that runs cannot be set up") } else { Ok(()) }
    }

    fn change(&self, change: impl FnOnce(&mut Control)) {
        if let Some(running) = &self.running {
            running.shared.change(change);
        }
    }
}

impl VhostUserBackendReqHandlerMut for Backend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// Deprecated: a back end should ignore it.
    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        unasked("RESET_DEVICE was not offered")
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.shape.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_features()? != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.features = features;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut mapped = Vec::with_capacity(regions.len());
        let mut mappings = Vec::with_capacity(regions.len());
        for (region, file) in regions.iter().zip(files) {
            let VhostUserMemoryRegion { guest_phys_addr, memory_size: bytes, user_addr, mmap_offset } = *region;
            check_length(&file, mmap_offset, bytes)?;
            let memory = region.mmap_region(file)?;
            mapped.push(GuestRegionMmap::new(memory, GuestAddress(guest_phys_addr)).ok_or(Error::InvalidParam)?);
            mappings.push(Mapping { user_addr, guest_phys_addr, bytes });
        }
        let memory = Memory::from_regions(mapped).map_err(|error| Error::ReqHandlerError(io::Error::other(error)))?;
        self.memory = Arc::new(memory);
        self.mappings = mappings;
        for vring in &self.vrings {
            vring.change(|control| control.memory = Arc::clone(&self.memory));
        }
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let size = u16::try_from(size).map_err(|_| Error::InvalidParam)?;
        let vring = self.vring(index)?;
        vring.refuse_while_running()?;
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        vring.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let vring = self.vring(index)?;
        vring.refuse_while_running()?;
        vring.addresses = Some(Addresses { descriptor, available, used });
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        let vring = self.vring(index)?;
        vring.refuse_while_running()?;
        vring.base = base;
        Ok(())
    }

    /// Stops a ring, once what is under way has ended.
    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let vring = self.vring(index)?;
        vring.stop(End::Finish(Instant::now() + PATIENCE));
        vring.call = None;
        vring.error = None;
        Ok(VhostUserVringState::new(index, u32::from(vring.base)))
    }

    /// Starts a ring.
    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let Some(kick) = file.map(OwnedFd::from) else {
            return unasked("a ring that is polled; give it an eventfd");
        };
        let flags = rustix::fs::fcntl_getfl(&kick).map_err(|errno| Error::ReqHandlerError(errno.into()))?;
        rustix::fs::fcntl_setfl(&kick, flags | OFlags::NONBLOCK)
            .map_err(|errno| Error::ReqHandlerError(errno.into()))?;
        self.vring(index)?.stop(End::Finish(Instant::now() + PATIENCE));
        self.start(u16::from(index), kick)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let vring = self.vring(index)?;
        vring.call = file.map(|file| Arc::new(OwnedFd::from(file)));
        // What was used before may not have been told to this one.
        if let Some(call) = &vring.call {
            notify(call);
        }
        let call = vring.call.clone();
        vring.change(|control| control.call = call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let vring = self.vring(index)?;
        vring.error = file.map(|file| Arc::new(OwnedFd::from(file)));
        let error = vring.error.clone();
        vring.change(|control| control.error = error);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let vring = self.vring(index)?;
        vring.is_enabled = enable;
        vring.change(|control| control.is_enabled = enable);
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let (offset, size) = (offset as usize, size as usize);
        let end = offset.checked_add(size).filter(|end| *end <= SPACE_BYTES).ok_or(Error::InvalidParam)?;
        Ok(self.shape.space()[offset..end].to_vec())
    }

    /// Of the configuration space, a driver may change `writeback` only, and only with `CONFIG_WCE`.
    fn set_config(&mut self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        unasked("nothing of the configuration space can be changed")
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = self.check_inflight(asked)?;
        let bytes = Area::bytes(queues, size) as u64;
        let refuse = |errno: rustix::io::Errno| Error::ReqHandlerError(errno.into());
        let file = rustix::fs::memfd_create("osier-inflight", MemfdFlags::CLOEXEC).map_err(refuse)?;
        rustix::fs::ftruncate(&file, bytes).map_err(refuse)?;
        let file = File::from(file);
        let for_us = file.try_clone().map_err(Error::ReqHandlerError)?;
        self.inflight = Some(Area::map(for_us, 0, queues, size).map_err(Error::ReqHandlerError)?);
        Ok((VhostUserInflight::new(bytes, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let (queues, size) = self.check_inflight(given)?;
        let bytes = Area::bytes(queues, size) as u64;
        if given.mmap_size < bytes {
            return Err(Error::InvalidParam);
        }
        check_length(&file, given.mmap_offset, bytes)?;
        self.inflight = Some(Area::map(file, given.mmap_offset, queues, size).map_err(Error::ReqHandlerError)?);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        unasked("this is a disk")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        unasked("SHARED_OBJECT was not offered")
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        unasked("CONFIGURE_MEM_SLOTS was not offered")
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        unasked("CONFIGURE_MEM_SLOTS was not offered")
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        unasked("CONFIGURE_MEM_SLOTS was not offered")
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        unasked("DEVICE_STATE was not offered")
    }

    fn check_device_state(&mut self) -> Result<()> {
        unasked("DEVICE_STATE was not offered")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unasked("SHMEM was not offered")
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        unasked("LOG_SHMFD was not offered")
    }
}

impl Backend {
    fn check_inflight(&self, asked: &VhostUserInflight) -> Result<(u16, u16)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *asked;
        let is_possible =
            (1..=self.vrings.len()).contains(&usize::from(num_queues)) && (1..=QUEUE_SIZE_MAX).contains(&queue_size);
        if is_possible { Ok((num_queues, queue_size)) } else { Err(Error::InvalidParam) }
    }
}
