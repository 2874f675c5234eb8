/* report.h: descriptions of faults, to stderr and stored for sim_reports. */
#ifndef SIM_REPORT_H
#define SIM_REPORT_H

__attribute__((format(printf, 1, 2))) void sim_report(const char *format, ...);

#endif
