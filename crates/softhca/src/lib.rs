//! A host channel adapter in software
