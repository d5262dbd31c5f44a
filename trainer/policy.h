/* From the configuration to what parallel/ asks: how transfers travel, which are critical. Pure. */
#ifndef OCC_TRAINER_POLICY_H
#define OCC_TRAINER_POLICY_H

#include "parallel/route.h"
#include "parallel/simulate.h"
#include "trainer/config.h"

void occ_policy_of(const struct occ_config *c, struct occ_policy *p);
/* Marks the transfers of a stage's training list by each site's rule. */
void occ_policy_mark(const struct occ_config *c, const struct occ_policy *p,
		     struct occ_schedule *s);
/* Why a codec that is set compresses nothing; NULL if none is set, or `compresses` says that one
 * does.
 */
const char *occ_policy_inactive(const struct occ_policy *p, int compresses);
/* What plan and `slack` reckon with: seconds of a stage and of a dense transfer, bytes/s of a rank.
 */
struct occ_cost occ_policy_cost(const struct occ_config *c);
double occ_policy_net(const struct occ_config *c);
double occ_policy_flops(const struct occ_config *c);
/* Stages that data_parallel.stages selects: a count, round(fraction * pp) and at least 1, or all.
 */
int occ_policy_stages(double stages, int pipeline);

#endif
