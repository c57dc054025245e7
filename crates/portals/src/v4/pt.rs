//! Portals: the entries of the portal table, which messages name.

use hca_matching::PortalOptions;

use super::{EqHandle, Error, Ni};

impl Ni {
    /// Allocates a portal: `wanted`, or any (`PTL_PT_ANY`). Events of its entries go to `eq`.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID` for an index beyond [`Limits::max_pt_index`](super::Limits::max_pt_index) or an invalid queue,
    /// `PTL_PT_IN_USE`, `PTL_PT_FULL`, `PTL_PT_EQ_NEEDED`.
    #[doc(alias = "PtlPTAlloc")]
    pub fn pt_alloc(
        &self,
        options: PortalOptions,
        eq: Option<EqHandle>,
        wanted: Option<u32>,
    ) -> Result<u32, Error> {
        let alloc = || {
            if !PortalOptions::all().contains(options) {
                return Err(crate::Error::Argument {
                    argument: "options",
                    why: "has bits that name no option",
                });
            }
            let eq = eq.map(|eq| eq.of(self.handle(), "eq")).transpose()?;
            self.inner.core.with(|ni| ni.engine.pt_alloc(options, eq, wanted))
        };
        alloc().map_err(|e| Error::new("PtlPTAlloc", e))
    }
    /// Frees an index of the portal table.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`; `PTL_IN_USE` while the portal has entries, waiting headers, or operations under way.
    #[doc(alias = "PtlPTFree")]
    pub fn pt_free(&self, pt_index: u32) -> Result<(), Error> {
        self.inner.core.with(|ni| ni.engine.pt_free(pt_index)).map_err(|e| Error::new("PtlPTFree", e))
    }
    /// Enables a portal again, after a call or flow control disabled it.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`.
    #[doc(alias = "PtlPTEnable")]
    pub fn pt_enable(&self, pt_index: u32) -> Result<(), Error> {
        self.inner.core.with(|ni| ni.engine.pt_enable(pt_index)).map_err(|e| Error::new("PtlPTEnable", e))
    }
    /// Disables a portal, and returns when its earlier messages are done and their events are posted.
    ///
    /// # Errors
    /// `PTL_ARG_INVALID`; `PTL_FAIL` if the device does not let it wait.
    #[doc(alias = "PtlPTDisable")]
    pub fn pt_disable(&self, pt_index: u32) -> Result<(), Error> {
        let disable = || {
            self.inner.core.with(|ni| ni.engine.pt_disable(pt_index))?;
            self.inner.core.wait_for(|ni| Ok((ni.engine.pt_pending(pt_index)? == 0).then_some(())))
        };
        disable().map_err(|e| Error::new("PtlPTDisable", e))
    }
}
