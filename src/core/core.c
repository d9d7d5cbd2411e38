// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Start and end of the core: configuration, the table of our verbs, fork, exit. */
#include "core.h"
#include "bond.h"
#include "gpu.h"
#include "lag.h"
#include "group.h"
#include "known.h"
#include "nvshmem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct dp_stub *dp_stub;
static pid_t owner; /* the process that loaded us */

static const struct dp_verbs ours = {
	.alloc_pd = dp_alloc_pd,
	.dealloc_pd = dp_dealloc_pd,
	.reg_mr = dp_reg_mr,
	.reg_mr_iova = dp_reg_mr_iova,
	.reg_mr_iova2 = dp_reg_mr_iova2,
	.reg_dmabuf_mr = dp_reg_dmabuf_mr,
	.reg_mr_ex = dp_reg_mr_ex,
	.reg_buf_mr = dp_reg_buf_mr,
	.rereg_mr = dp_rereg_mr,
	.dereg_mr = dp_dereg_mr,
	.unimport_mr = dp_unimport_mr,
	.unimport_pd = dp_unimport_pd,
	.create_comp_channel = dp_create_comp_channel,
	.destroy_comp_channel = dp_destroy_comp_channel,
	.create_cq = dp_create_cq,
	.destroy_cq = dp_destroy_cq,
	.get_cq_event = dp_get_cq_event,
	.ack_cq_events = dp_ack_cq_events,
	.create_qp = dp_create_qp,
	.modify_qp = dp_modify_qp,
	.destroy_qp = dp_destroy_qp,
	.qp_to_qp_ex = dp_qp_to_qp_ex,
	.query_qp_data_in_order = dp_query_qp_data_in_order,
	.qp_attach_comp_cntr = dp_qp_attach_comp_cntr,
	.get_async_event = dp_get_async_event,
	.close_device = dp_close_device,
};

static const struct dp_core core = {
	.abi = DP_CORE_ABI,
	.ours = &ours,
	.direct_access = dp_direct_access,
	.show_devices = dp_show_devices,
	.nvshmem_env = dp_nvshmem_env,
	.bypassed = dp_bypassed,
	.dmabuf_made = dp_dmabuf_made,
};

static void in_child(void)
{
	dp_gpu_after_fork();
	dp_lag_after_fork();
	dp_peer_after_fork();
	dp_ctx_after_fork();
	dp_known_after_fork();
	dp_qp_after_fork();
	dp_tell_after_fork();
	dp_cq_after_fork();
	dp_channel_after_fork();
	dp_chanwatch_after_fork();
	dp_keys_after_fork();
	dp_bond_after_fork();
	dp_progress_after_fork();
	dp_stats_after_fork();
}

static void report(void)
{
	int ret;

	if (dp_cfg.diag && dp_stub->stderr_is_ours())
		dp_stats_print(stderr);
	if (!dp_cfg.diag_json[0])
		return;
	ret = dp_stats_write_json(dp_cfg.diag_json);
	if (ret)
		dp_warn("cannot write %s: %s", dp_cfg.diag_json, strerror(-ret));
}

__attribute__((destructor)) static void at_exit(void)
{
	/* a child did none of the parent's work, but perhaps some of its own */
	if (!dp_stub || (getpid() != owner && !dp_stats_any()))
		return;
	report();
	dp_chanwatch_stop();
	dp_bond_stop(true);
}

__attribute__((visibility("default"))) const struct dp_core *dualport_core_start(const struct dp_stub *stub)
{
	char text[512];
	int ret;

	if (stub->abi != DP_CORE_ABI) {
		dp_warn("the preloaded library and its core are of different versions; running on one port");
		return NULL;
	}
	dp_log_may = stub->stderr_is_ours;
	ret = dp_config_load(&dp_cfg, NULL, text, sizeof(text));
	if (ret) {
		dp_warn("%s; running on one port", text);
		return NULL;
	}
	dp_log_level = (enum dp_log_level)dp_cfg.debug;
	if (!dp_cfg.enable)
		return NULL;
	if (!dp_cfg.ngroups && dp_groups_from_card(&dp_cfg, NULL, text, sizeof(text)))
		dp_info("%s", text);
	ret = pthread_atfork(NULL, NULL, in_child);
	if (ret) {
		dp_warn("pthread_atfork: %s; running on one port", strerror(ret));
		return NULL;
	}
	owner = getpid();
	dp_stub = stub;
	return &core;
}
