//! Status values of the standard (Base Specification, "Status Field"): type in bits 10:8, code in bits 7:0. Those that
//! the device itself answers with are [`Status`]'s own.

use osier_device::Status;

/// The opcode is not one of this controller's.
pub const INVALID_OPCODE: Status = Status(0x001);
/// Another command with this identifier has not ended.
pub const COMMAND_ID_CONFLICT: Status = Status(0x003);
/// The data could not be moved.
pub const DATA_TRANSFER_ERROR: Status = Status(0x004);
/// Ended by an Abort command.
pub const ABORT_REQUESTED: Status = Status(0x007);
/// Ended because its queue was deleted.
pub const ABORTED_BY_DELETION: Status = Status(0x008);
/// There is no such namespace, or it is not attached.
pub const INVALID_NAMESPACE: Status = Status(0x00B);
/// Not at this time: an earlier command is missing.
pub const COMMAND_SEQUENCE_ERROR: Status = Status(0x00C);
/// A segment of an SGL is none.
pub const INVALID_SGL_SEGMENT: Status = Status(0x00D);
/// An SGL has more descriptors than fit, or too few.
pub const INVALID_SGL_COUNT: Status = Status(0x00E);
/// The lengths of an SGL are not the data's.
pub const SGL_LENGTH_INVALID: Status = Status(0x00F);
/// A descriptor of a type that this controller does not have.
pub const SGL_TYPE_INVALID: Status = Status(0x011);
/// A PRP entry whose offset has to be zero, or a multiple of four or eight, is not.
pub const PRP_OFFSET_INVALID: Status = Status(0x013);
/// The offset of an SGL descriptor lies outside of the capsule.
pub const SGL_OFFSET_INVALID: Status = Status(0x016);
/// The transport lost or broke the command's data; it may be sent again.
pub const TRANSIENT_TRANSPORT_ERROR: Status = Status(0x022);
/// The namespace takes no writes.
pub const NAMESPACE_WRITE_PROTECTED: Status = Status(0x020);
/// The completion queue does not exist, or is the admin queue.
pub const COMPLETION_QUEUE_INVALID: Status = Status(0x100);
/// No queue can have this number, or one has it already.
pub const INVALID_QUEUE_IDENTIFIER: Status = Status(0x101);
/// A queue has 2 to CAP.MQES + 1 entries.
pub const INVALID_QUEUE_SIZE: Status = Status(0x102);
/// More asynchronous event requests than the controller holds.
pub const EVENT_LIMIT_EXCEEDED: Status = Status(0x105);
/// No interrupt has this number.
pub const INVALID_INTERRUPT_VECTOR: Status = Status(0x108);
/// There is no such log page.
pub const INVALID_LOG_PAGE: Status = Status(0x109);
/// There is no such LBA format.
pub const INVALID_FORMAT: Status = Status(0x10A);
/// A completion queue goes after its submission queues.
pub const INVALID_QUEUE_DELETION: Status = Status(0x10C);
/// The feature is not kept over a reset.
pub const FEATURE_NOT_SAVEABLE: Status = Status(0x10D);
/// The feature cannot be changed.
pub const FEATURE_NOT_CHANGEABLE: Status = Status(0x10E);
/// The controller has the namespace already.
pub const NAMESPACE_ALREADY_ATTACHED: Status = Status(0x118);
/// The controller does not have the namespace.
pub const NAMESPACE_NOT_ATTACHED: Status = Status(0x11A);
/// A list of controllers that is none.
pub const CONTROLLER_LIST_INVALID: Status = Status(0x11C);
/// Connect: a record format that there is not.
pub const CONNECT_INCOMPATIBLE_FORMAT: Status = Status(0x180);
/// Connect: not now; it may be tried again.
pub const CONNECT_BUSY: Status = Status(0x181);
/// Connect: a parameter is wrong; dword 0 says which.
pub const CONNECT_INVALID_PARAMETERS: Status = Status(0x182);
/// Connect: this host is not let in.
pub const CONNECT_INVALID_HOST: Status = Status(0x184);
/// The queue has to be authenticated first.
pub const AUTHENTICATION_REQUIRED: Status = Status(0x191);
/// What is stored differs from what was given.
pub const COMPARE_FAILURE: Status = Status(0x285);

/// Do Not Retry: the same command will fail again. Bit 14 of the status field, without its phase.
const DO_NOT_RETRY: u16 = 1 << 14;

/// The 15 bits of a completion's status field. What cannot go better a second time says so: the generic and
/// command-specific errors of a bad command, but not those of the device's own condition.
#[must_use]
pub fn field(status: Status) -> u16 {
    let may_pass = matches!(
        status,
        Status::SUCCESS
            | Status::INTERNAL_ERROR
            | Status::NAMESPACE_NOT_READY
            | Status::THERMAL_SHUTDOWN
            | ABORT_REQUESTED
            | ABORTED_BY_DELETION
            | COMMAND_ID_CONFLICT
            | EVENT_LIMIT_EXCEEDED
            | TRANSIENT_TRANSPORT_ERROR
            | CONNECT_BUSY
            // What is wrong may be that the controller has gone meanwhile, and then the host begins anew.
            | CONNECT_INVALID_PARAMETERS
    );
    (status.0 & 0x7FF) | if may_pass { 0 } else { DO_NOT_RETRY }
}

/// The status in such a field.
pub fn of_field(field: u16) -> Status {
    Status(field & 0x7FF)
}
