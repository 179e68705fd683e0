//! The device core: flash, write buffer, thermal model and persistence, sans-IO. Pure.
