//! NAND array and flash translation layer. Pure.
