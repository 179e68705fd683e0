//! What is fixed while traffic runs: the pipelines, their stages, and small identifying numbers.

use crate::{ACTORS_MAX, STAGES_MAX};

/// One of the two domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Side {
    /// The host's process.
    Host = 0,
    /// The device's process.
    Device = 1,
}

impl Side {
    /// The other domain.
    pub fn other(self) -> Side {
        match self {
            Side::Host => Side::Device,
            Side::Device => Side::Host,
        }
    }

    /// The side that a byte names, if it names one.
    pub fn from_byte(byte: u8) -> Option<Side> {
        match byte {
            0 => Some(Side::Host),
            1 => Some(Side::Device),
            _ => None,
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Side::Host => "host",
            Side::Device => "device",
        })
    }
}

/// Which way data goes through a pipeline: towards the media, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Direction {
    /// A write: the first stage first.
    Forward = 0,
    /// A read: the last stage first, each undoing what it did.
    Inverse = 1,
}

/// An actor: one stage of one pipeline, with one linear memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId(pub u16);

/// A client's queue through one pipeline in one direction; what it carries stays in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u16);

/// A place in the I/O arena that holds one request's buffers while it is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId(pub u16);

/// How an extent was written, as it is kept beside it on the media: the pipeline in bits 0..24 (0 is no
/// pipeline) and in bits 24..32 the stages that were left out, so that a read leaves them out too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag(pub u32);

impl Tag {
    /// Of bytes that went through no stage.
    pub const NONE: Tag = Tag(0);

    /// The pipeline alone.
    #[inline]
    pub fn pipeline(self) -> Tag {
        Tag(self.0 & 0x00ff_ffff)
    }

    /// The stages that were left out: bit *i* stands for position *i*.
    pub fn skipped(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// The same pipeline with these stages left out.
    pub fn with_skipped(self, mask: u8) -> Tag {
        Tag(self.pipeline().0 | u32::from(mask) << 24)
    }
}

/// The stages of one pipeline, in the order of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipeline {
    /// What its extents are tagged with.
    pub tag: Tag,
    /// Its actors, first stage of a write first. At most [`STAGES_MAX`].
    pub stages: Vec<ActorId>,
    /// Stages (bit *i*: position *i*) that only a query runs, on its way back: filters and projections, which
    /// do not give back the bytes that were written.
    pub query: u8,
}

/// Every pipeline of a device. Both domains hold the same one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pipelines: Vec<Pipeline>,
    actors: usize,
}

impl Plan {
    /// Takes the pipelines of a device. The actors' numbers must be 0..n, each in one stage only.
    ///
    /// # Panics
    /// On two pipelines of one tag, tag 0, too many stages or actors, or an actor used twice: whoever
    /// read the configuration has to have refused these.
    pub fn new(pipelines: Vec<Pipeline>) -> Plan {
        let mut seen = Vec::new();
        for (index, pipeline) in pipelines.iter().enumerate() {
            assert!(pipeline.tag != Tag::NONE && pipeline.tag.skipped() == 0, "{:?} names no pipeline", pipeline.tag);
            assert!(pipeline.stages.len() <= STAGES_MAX);
            assert!(pipelines[..index].iter().all(|p| p.tag != pipeline.tag), "one tag, one pipeline");
            seen.extend(pipeline.stages.iter().map(|a| usize::from(a.0)));
        }
        seen.sort_unstable();
        assert!(seen.len() <= ACTORS_MAX);
        assert!(seen.iter().enumerate().all(|(i, a)| i == *a), "actors are numbered without gaps, each in one stage");
        Plan { actors: seen.len(), pipelines }
    }

    /// How many actors there are.
    pub fn actors(&self) -> usize {
        self.actors
    }

    /// All pipelines.
    pub fn pipelines(&self) -> &[Pipeline] {
        &self.pipelines
    }

    /// The pipeline of a tag, whatever was left out.
    pub fn pipeline(&self, tag: Tag) -> Option<&Pipeline> {
        self.pipelines.iter().find(|p| p.tag == tag.pipeline())
    }

    /// The actor that a request meets as its `visited`-th stage, or `None` behind the last one.
    pub fn stage(&self, tag: Tag, direction: Direction, visited: u8) -> Option<ActorId> {
        let stages = &self.pipeline(tag)?.stages;
        let index = match direction {
            Direction::Forward => usize::from(visited),
            Direction::Inverse => stages.len().checked_sub(1 + usize::from(visited))?,
        };
        stages.get(index).copied()
    }

    /// The position of an actor in its pipeline, counted from the first stage of a write.
    pub fn position(&self, tag: Tag, actor: ActorId) -> Option<u8> {
        let stages = &self.pipeline(tag)?.stages;
        stages.iter().position(|a| *a == actor).map(|i| i as u8)
    }
}
