#include "command_line.h"

#include <CLI/CLI.hpp>

#include <cstdlib>

namespace bench {

CommandLine::CommandLine(const std::string& purpose) : app_(std::make_unique<CLI::App>(purpose)) {}
CommandLine::~CommandLine() = default;

void CommandLine::number(const char* name, int& value, const char* help) {
  app_->add_option(name, value, help)->check(CLI::PositiveNumber);
}
void CommandLine::number(const char* name, double& value, const char* help) {
  app_->add_option(name, value, help)->check(CLI::PositiveNumber);
}
void CommandLine::text(const char* name, std::string& value, const char* help, const std::vector<std::string>& choices) {
  auto* option = app_->add_option(name, value, help);
  if (!choices.empty()) option->check(CLI::IsMember(choices));
}
void CommandLine::flag(const char* name, bool& value, const char* help) { app_->add_flag(name, value, help); }

void CommandLine::parse(int argument_count, char** arguments) {
  try {
    app_->parse(argument_count, arguments);
  } catch (const CLI::ParseError& error) {
    std::exit(app_->exit(error));
  }
}

}  // namespace bench
