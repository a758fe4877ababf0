"""Names that --help lists, written by docs/generate.py: the tables of the names import torch."""

ALGORITHMS = (  # separated by spaces
    "ddpg rdpg rdpg_s cddpg crdpg crdpg_s td3 rtd3 rtd3_s ctd3 crtd3 crtd3_s sac rsac rsac_s csac crsac crsac_s bc "
    "rbc rbc_s cbc crbc crbc_s td3_bc rtd3_bc rtd3_bc_s ctd3_bc crtd3_bc crtd3_bc_s iql riql riql_s ciql criql "
    "criql_s cql rcql rcql_s ccql crcql crcql_s bcq rbcq rbcq_s cbcq crbcq crbcq_s awac rawac rawac_s cawac crawac "
    "crawac_s crr rcrr rcrr_s ccrr crcrr crcrr_s sac_n rsac_n rsac_n_s csac_n crsac_n crsac_n_s edac redac redac_s "
    "cedac credac credac_s rebrac rrebrac rrebrac_s crebrac crrebrac crrebrac_s calql rcalql rcalql_s ccalql "
    "crcalql crcalql_s fql rfql rfql_s cfql crfql crfql_s rlpd rrlpd rrlpd_s crlpd crrlpd crrlpd_s tqc rtqc rtqc_s "
    "ctqc crtqc crtqc_s dqn rdqn rdqn_s cdqn crdqn crdqn_s qrdqn rqrdqn rqrdqn_s cqrdqn crqrdqn crqrdqn_s r2d2 "
    "r2d2_s cr2d2 cr2d2_s dsac rdsac rdsac_s cdsac crdsac crdsac_s dbc rdbc rdbc_s cdbc crdbc crdbc_s dbcq rdbcq "
    "rdbcq_s cdbcq crdbcq crdbcq_s dcql rdcql rdcql_s cdcql crdcql crdcql_s dcrr rdcrr rdcrr_s cdcrr crdcrr "
    "crdcrr_s mbpo rmbpo rmbpo_s mopo rmopo rmopo_s morel rmorel rmorel_s combo rcombo rcombo_s neubay rneubay "
    "rneubay_s aleatoric_penalty raleatoric_penalty raleatoric_penalty_s epistemic_penalty repistemic_penalty "
    "repistemic_penalty_s aleatoric_partitioning raleatoric_partitioning raleatoric_partitioning_s "
    "epistemic_partitioning repistemic_partitioning repistemic_partitioning_s "
)

ENVIRONMENTS = (  # separated by spaces
    "pendulum-v0 pendulum-p-v0 pendulum-v-v0 pendulum-va-v0 pendulum-p-concat5-v0 pendulum-v-concat10-v0 "
    "pendulum-va-concat10-v0 pendulum-img-v0 cartpole-v0 cartpole-p-v0 cartpole-v-v0 dmc-cartpole-balance-v0 "
    "dmc-cartpole-balance-p-v0 dmc-cartpole-balance-va-v0 dmc-cartpole-balance-p-concat5-v0 "
    "dmc-cartpole-balance-va-concat10-v0 dmc-cartpole-swingup-v0 dmc-cartpole-swingup-p-v0 "
    "dmc-cartpole-swingup-va-v0 dmc-cartpole-swingup-p-concat5-v0 dmc-cartpole-swingup-va-concat10-v0 "
    "dmc-cartpole-balance-img-v0 dmc-cartpole-balance-mdp-img-concat3-v0 dmc-walker-walk-img-v0 "
    "dmc-walker-walk-mdp-img-concat3-v0 reacher-mdp-v0 reacher-pomdp-v0 hopper-bullet-v0 hopper-bullet-p-v0 "
    "hopper-bullet-v-v0 walker2d-bullet-v0 walker2d-bullet-p-v0 walker2d-bullet-v-v0 halfcheetah-bullet-v0 "
    "halfcheetah-bullet-p-v0 halfcheetah-bullet-v-v0 halfcheetah-p-v0 ant-bullet-v0 ant-bullet-p-v0 ant-bullet-v-v0 "
    "ant-p-v0 hopper-mujoco-v0 hopper-mujoco-p-v0 hopper-mujoco-v-v0 walker2d-mujoco-v0 walker2d-mujoco-p-v0 "
    "walker2d-mujoco-v-v0 halfcheetah-mujoco-v0 halfcheetah-mujoco-p-v0 halfcheetah-mujoco-v-v0 ant-mujoco-v0 "
    "ant-mujoco-p-v0 ant-mujoco-v-v0 water-maze-simple-mdp-v0 water-maze-simple-pomdp-v0 "
    "water-maze-simple-pomdp-concat10-v0 bumps-normal-test-v0 corridor-10-v0 corridor-30-v0 corridor-100-v0 "
    "corridor-300-v0 corridor-1000-v0 "
)
