//! Storage actors: the sandbox, intrinsics, pipelines and memory placement.
