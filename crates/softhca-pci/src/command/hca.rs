//! Commands that set the function up: enabling, the interface's version, starting and stopping, identity, registers.

use hca_prm::command::hca::{
    AccessRegIn, AccessRegMod, AccessRegOut, AdapterParamBlock, QueryAdapterOut, QueryIssiOut, SetIssiIn,
    TeardownHcaIn, TeardownProfile,
};
use hca_prm::register::RegisterId;
use hca_prm::{CmdIn, CmdStatus, Opcode};

use super::{Commands, Output, Phase, parse};
use crate::function::Function;

/// Versions of the interface that are spoken, a bit each: version 1.
const ISSI: u32 = 1 << 1;
/// The maker's number at the IEEE, and on the bus.
const IEEE_VENDOR: u32 = 0x02c9;
const PCI_VENDOR: u32 = 0x15b3;
fn teardown_profile(input: &[u8]) -> Result<TeardownProfile, CmdStatus> {
    let profile = parse::<TeardownHcaIn>(input)?.get(TeardownHcaIn::PROFILE);
    TeardownProfile::from_code(profile).ok_or(CmdStatus::BadParam)
}

/// The board's name.
const PSID: &[u8; 16] = b"HCA_SOFT00000001";

impl Function {
    pub(super) fn setup_command(
        &mut self,
        opcode: Opcode,
        input: &[u8],
        out: &mut Output,
    ) -> Result<(), CmdStatus> {
        match opcode {
            Opcode::ENABLE_HCA => self.enable(),
            Opcode::DISABLE_HCA => {
                self.disable();
                Ok(())
            }
            Opcode::QUERY_ISSI => {
                let output = QueryIssiOut::new().with(QueryIssiOut::CURRENT_ISSI, self.commands.issi);
                out.put(&output.with(QueryIssiOut::SUPPORTED_ISSI_DW0, ISSI))
            }
            Opcode::SET_ISSI => {
                let issi = parse::<SetIssiIn>(input)?.get(SetIssiIn::CURRENT_ISSI);
                if issi > 31 || ISSI >> issi & 1 == 0 {
                    return Err(CmdStatus::BadParam);
                }
                self.commands.issi = issi;
                Ok(())
            }
            Opcode::QUERY_PAGES => self.query_pages(input, out),
            Opcode::MANAGE_PAGES => self.manage_pages(input, out),
            Opcode::QUERY_HCA_CAP => self.query_hca_cap(input, out),
            Opcode::SET_HCA_CAP => self.set_hca_cap(input),
            Opcode::INIT_HCA => self.init(),
            Opcode::TEARDOWN_HCA => self.teardown(input),
            Opcode::QUERY_ADAPTER => query_adapter(out),
            Opcode::SET_DRIVER_VERSION => Ok(()),
            _ => Err(CmdStatus::BadOp),
        }
    }

    fn enable(&mut self) -> Result<(), CmdStatus> {
        if self.commands.phase != Phase::Disabled {
            return Err(CmdStatus::BadSysState);
        }
        self.commands.phase = Phase::Enabled;
        Ok(())
    }

    /// The driver uses the function no more. Pages that it did not take back are its own again.
    pub(crate) fn disable(&mut self) {
        self.stop();
        self.commands = Commands::default();
    }

    fn init(&mut self) -> Result<(), CmdStatus> {
        if self.commands.phase != Phase::Enabled {
            return Err(CmdStatus::BadSysState);
        }
        if self.wanted_pages() > 0 {
            return Err(CmdStatus::NoRes);
        }
        self.commands.phase = Phase::Running;
        self.open_port();
        Ok(())
    }

    fn teardown(&mut self, input: &[u8]) -> Result<(), CmdStatus> {
        match teardown_profile(input)? {
            TeardownProfile::GracefulClose | TeardownProfile::ForceClose => {
                self.stop();
                self.commands.phase = Phase::Enabled;
                Ok(())
            }
            // The register of the network interface stops at any time.
            TeardownProfile::PrepareFastTeardown => Ok(()),
            _ => Err(CmdStatus::BadParam),
        }
    }

    /// Whether a command destroys all objects, and would be done now.
    pub(super) fn ends_all(&self, input: &[u8]) -> bool {
        let opcode = parse::<CmdIn>(input).map(|head| head.opcode());
        if opcode == Ok(Opcode::DISABLE_HCA) {
            return true;
        }
        let is_teardown = opcode == Ok(Opcode::TEARDOWN_HCA);
        let ends = |profile| matches!(profile, TeardownProfile::GracefulClose | TeardownProfile::ForceClose);
        is_teardown && self.commands.phase == Phase::Running && teardown_profile(input).is_ok_and(ends)
    }

    pub(super) fn access_register(&mut self, input: &[u8], out: &mut Output) -> Result<(), CmdStatus> {
        let command: AccessRegIn = parse(input)?;
        let id = RegisterId::from_code(command.get(AccessRegIn::REGISTER_ID)).ok_or(CmdStatus::BadParam)?;
        let how = AccessRegMod::from_code(command.get(AccessRegIn::OP_MOD)).ok_or(CmdStatus::BadParam)?;
        let mut bytes = input[AccessRegIn::SIZE..].to_vec();
        match how {
            AccessRegMod::Read => self.read_register(id, &mut bytes)?,
            _ => self.write_register(id, &bytes)?,
        }
        let room = out.len().saturating_sub(AccessRegOut::SIZE);
        bytes.truncate(room);
        out.put_at(AccessRegOut::SIZE, &bytes)
    }
}

fn query_adapter(out: &mut Output) -> Result<(), CmdStatus> {
    let block = AdapterParamBlock::new()
        .with(AdapterParamBlock::IEEE_VENDOR_ID, IEEE_VENDOR)
        .with(AdapterParamBlock::VSD_VENDOR_ID, PCI_VENDOR)
        .with(AdapterParamBlock::VSD_CONTD_PSID, *PSID);
    out.put(&QueryAdapterOut::new().with(QueryAdapterOut::QUERY_ADAPTER_STRUCT, block))
}
