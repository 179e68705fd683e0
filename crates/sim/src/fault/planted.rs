//! The bugs that tests plant, to prove that the checks can fail. Outside of tests there are none.

#[cfg(test)]
pub(super) use osier_flash::{Bug, page::PageBug};

#[cfg(not(test))]
pub(super) type Bug = std::convert::Infallible;
#[cfg(not(test))]
pub(super) type PageBug = std::convert::Infallible;

use osier_flash::faulty::SlotArray;
use osier_flash::page::{PageFtl, PageFtlConfig, PageRecovery};
use osier_flash::{Ftl, FtlError, FtlParams, Geometry, MediaError, RecoveryReport, Timing};

/// A bug of either FTL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planted {
    #[cfg_attr(not(test), allow(dead_code))]
    Page(PageBug),
    #[cfg_attr(not(test), allow(dead_code))]
    Extent(Bug),
}

impl Planted {
    pub(super) fn page(planted: Option<Planted>) -> Option<PageBug> {
        match planted {
            Some(Planted::Page(bug)) => Some(bug),
            _ => None,
        }
    }

    pub(super) fn extent(planted: Option<Planted>) -> Option<Bug> {
        match planted {
            Some(Planted::Extent(bug)) => Some(bug),
            _ => None,
        }
    }
}

#[cfg_attr(not(test), allow(unused_variables))]
pub(super) fn plant_page(ftl: &mut PageFtl<SlotArray>, bug: Option<PageBug>) {
    #[cfg(test)]
    if let Some(bug) = bug {
        ftl.plant(bug);
    }
}

#[cfg_attr(not(test), allow(unused_variables))]
pub(super) fn recover_page(
    config: &PageFtlConfig,
    seed: u64,
    media: SlotArray,
    bug: Option<PageBug>,
) -> Result<(PageFtl<SlotArray>, PageRecovery), String> {
    #[cfg(test)]
    let recovered = PageFtl::recover_planted(config, seed, media, bug);
    #[cfg(not(test))]
    let recovered = PageFtl::recover(config, seed, media);
    recovered.map_err(|error| error.to_string())
}

#[cfg_attr(not(test), allow(unused_variables))]
pub(super) fn plant_extent(ftl: &mut Ftl, bug: Option<Bug>) {
    #[cfg(test)]
    if let Some(bug) = bug {
        ftl.plant(bug);
    }
}

/// Reads media bytes: address, and where to put them.
type ReadMedia<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), MediaError> + 'a;

#[cfg_attr(not(test), allow(unused_variables))]
pub(super) fn recover_extent(
    (geometry, timing, params, blocks): (Geometry, Timing, FtlParams, u64),
    read: &mut ReadMedia<'_>,
    bug: Option<Bug>,
) -> Result<(Ftl, RecoveryReport), FtlError> {
    #[cfg(test)]
    let recovered = Ftl::recover_planted(geometry, timing, params, blocks, read, bug);
    #[cfg(not(test))]
    let recovered = Ftl::recover(geometry, timing, params, blocks, read);
    recovered
}
