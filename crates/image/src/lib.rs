//! A device image on disk: superblock, owner lock and media back ends.
